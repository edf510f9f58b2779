// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// entry is a file in a package.
type entry struct {
	path string // from the root of the file system, without the first "/"
	mode int64
	data []byte
}

// program is a built program as a file at a path.
func program(t target, work, path string) (entry, error) {
	b, err := os.ReadFile(t.path(work))
	if err != nil {
		return entry{}, fmt.Errorf("read the program: %w", err)
	}
	return entry{path, 0o755, b}, nil
}

const documents = "usr/share/doc/gputrace/"

// sharedFiles are what every package has beside the program: licenses, README, changes, the manual page and completions. The last two
// are what the program itself prints, so it must run here.
func sharedFiles(ctx context.Context, source, work string) ([]entry, error) {
	var out []entry
	for _, f := range []struct{ from, to string }{
		{"LICENSE", documents + "LICENSE"},
		{"LICENSES/GPL-2.0-only.txt", documents + "GPL-2.0-only.txt"},
		{"LICENSES/BSD-2-Clause.txt", documents + "BSD-2-Clause.txt"},
		{"README.md", documents + "README.md"},
		{"CHANGELOG.md", documents + "CHANGELOG.md"},
	} {
		b, err := os.ReadFile(filepath.Join(source, f.from))
		if err != nil {
			return nil, fmt.Errorf("read a document: %w", err)
		}
		out = append(out, entry{f.to, 0o644, b})
	}
	own, err := ownTarget()
	if err != nil {
		return nil, err
	}
	for _, f := range []struct{ to, command string }{
		{"usr/share/man/man1/gputrace.1.gz", "man"},
		{"usr/share/bash-completion/completions/gputrace", "completion bash"},
		{"usr/share/zsh/vendor-completions/_gputrace", "completion zsh"},
		{"usr/share/fish/vendor_completions.d/gputrace.fish", "completion fish"},
	} {
		b, err := exec.CommandContext(ctx, own.path(work), strings.Fields(f.command)...).Output()
		if err != nil {
			return nil, fmt.Errorf("run gputrace %s: %w", f.command, err)
		}
		if strings.HasSuffix(f.to, ".gz") {
			b = compress(b)
		}
		out = append(out, entry{f.to, 0o644, b})
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// ownTarget is the static program of this machine.
func ownTarget() (target, error) {
	for _, t := range targets {
		if t.os == runtime.GOOS && t.arch == runtime.GOARCH && !t.cgo {
			return t, nil
		}
	}
	return target{}, fmt.Errorf("no program is built for %s/%s, where this runs", runtime.GOOS, runtime.GOARCH)
}

// compress is gzip without a name or a time. Writing to memory does not fail.
func compress(b []byte) []byte {
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}
