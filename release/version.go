// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// release is what a build is of.
type release struct {
	version string    // semantic, without v: "1.2.3", "1.3.0-rc.1", "0.1.1-0.20261123054629-a7ff5ef6f8c4"
	commit  string    // its full hash
	time    time.Time // of the commit, UTC, to the second; every packed file has it
}

var semantic = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// identify asks git for the commit of a checkout. Without a given version it is the tag of the commit, and without a tag
// ownVersion has it. A checkout with changes is refused: nobody could build it again.
func identify(ctx context.Context, source, version string) (release, error) {
	changes, err := git(ctx, source, "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return release{}, err
	}
	if changes != "" {
		return release{}, errors.New("the checkout has changes that are not committed")
	}
	commit, err := git(ctx, source, "rev-parse", "HEAD")
	if err != nil {
		return release{}, err
	}
	seconds, err := git(ctx, source, "show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return release{}, err
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return release{}, fmt.Errorf("read the time of the commit: %w", err)
	}
	r := release{version: version, commit: commit, time: time.Unix(n, 0).UTC()}
	if r.version == "" {
		r.version = r.ownVersion(ctx, source)
	}
	if !semantic.MatchString(r.version) {
		return release{}, fmt.Errorf("%q is not a version such as 1.2.3", r.version)
	}
	return r, nil
}

// ownVersion is the tag of the commit, or the version of the first section of CHANGELOG.md. If that section is what comes after a version,
// it is what Go calls a commit after a tag: "0.1.1-0.20261129054629-a7ff5ef6f8c4" (go.dev/ref/mod#pseudo-versions).
func (r release) ownVersion(ctx context.Context, source string) string {
	if tag, err := git(ctx, source, "describe", "--tags", "--exact-match", "--match", "v[0-9]*"); err == nil {
		return strings.TrimPrefix(tag, "v")
	}
	built := r.time.Format("20060102150405") + "-" + r.commit[:12]
	changes, err := os.ReadFile(filepath.Join(source, "CHANGELOG.md"))
	if err != nil {
		return "0.0.0-" + built
	}
	return versionOf(string(changes), built)
}

// section begins a section of CHANGELOG.md: "## 0.1.0 (29 November 2026)", "## Unreleased".
var section = regexp.MustCompile(`(?m)^## (?:(\d+\.\d+\.)(\d+)\b)?`)

// versionOf returns the version of a build of what a change log describes.
func versionOf(changes, built string) string {
	for i, s := range section.FindAllStringSubmatch(changes, -1) {
		patch, err := strconv.Atoi(s[2])
		switch {
		case err != nil: // no version
		case i == 0:
			return s[1] + s[2]
		default:
			return fmt.Sprintf("%s%d-0.%s", s[1], patch+1, built)
		}
	}
	return "0.0.0-" + built
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, exit.Stderr)
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// distribution is the version as dpkg and rpm sort it: what comes before a release is marked by "~", and "-" would end the version.
func (r release) distribution() string {
	base, pre, found := strings.Cut(r.version, "-")
	if !found {
		return base
	}
	return base + "~" + strings.ReplaceAll(pre, "-", ".")
}

// python is the version as Python's packaging (PEP 440) has it: "1.3.0rc1", "0.0.0.dev20261123054629+a7ff5ef6f8c4".
func (r release) python() string {
	base, pre, found := strings.Cut(r.version, "-")
	if !found {
		return base
	}
	if kind, number, ok := strings.Cut(pre, "."); ok && (kind == "rc" || kind == "alpha" || kind == "beta") {
		return base + map[string]string{"rc": "rc", "alpha": "a", "beta": "b"}[kind] + number
	}
	return base + ".dev" + r.time.Format("20060102150405") + "+" + strings.NewReplacer("-", ".").Replace(r.commit[:12])
}
