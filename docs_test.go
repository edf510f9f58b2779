// SPDX-License-Identifier: Apache-2.0

package gputrace_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parts are the three folders of docs, one for each kind of reader.
var parts = []string{"use", "decisions", "measured"}

// otherPages are the pages outside the parts.
var otherPages = []string{
	"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "llms.txt", "docs/README.md", "docs/schemas/README.md",
	"docs/schemas/dataset.md",
}

// partPages returns the pages of a part of docs.
func partPages(t *testing.T, part string) []string {
	t.Helper()
	var out []string
	require.NoError(t, filepath.WalkDir(filepath.Join("docs", part), func(name string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(name, ".md") {
			out = append(out, filepath.ToSlash(name))
		}
		return err
	}))
	require.NotEmpty(t, out, part)
	return out
}

// allPages returns the pages that people read.
func allPages(t *testing.T) []string {
	t.Helper()
	out := slices.Clone(otherPages)
	for _, part := range parts {
		out = append(out, partPages(t, part)...)
	}
	return out
}

// TestIndex: docs/README.md lists every page, and docs has no page outside the parts.
func TestIndex(t *testing.T) {
	index := read(t, "docs/README.md")
	for _, page := range allPages(t)[len(otherPages)-2:] {
		if !strings.Contains(index, "("+strings.TrimPrefix(page, "docs/")+")") {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
	flat, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.Equal(t, []string{"docs/README.md"}, flat)
}

var (
	makeTarget = regexp.MustCompile("`make ([a-z-]+)`")
	link       = regexp.MustCompile(`\]\(([^)\s#:]*)(?:#([^)\s]+))?\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence      = regexp.MustCompile("(?ms)^```.*?^```$")
	quotedPath = regexp.MustCompile("`([A-Za-z0-9_.-]+/[A-Za-z0-9_./-]*)`")
	quotedGo   = regexp.MustCompile("`([a-z0-9_]+\\.go)`")
	testName   = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
)

// TestDocumentation: the make targets, files and headings that pages mention exist.
func TestDocumentation(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, page := range allPages(t) {
		text := read(t, page)
		for _, m := range makeTarget.FindAllStringSubmatch(text, -1) {
			require.Contains(t, makefile, "\n"+m[1]+": ", "%s: make %s", page, m[1])
		}
		for _, m := range link.FindAllStringSubmatch(withoutCode(fence.ReplaceAllString(text, "")), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s", page, err)
				continue
			}
			if m[2] != "" && strings.HasSuffix(target, ".md") && !slices.Contains(anchors(t, target), m[2]) {
				t.Errorf("%s: %s has no heading %s", page, target, m[2])
			}
		}
	}
}

// anchors returns the anchors that a page's headings make on GitHub.
func anchors(t *testing.T, page string) []string {
	t.Helper()
	var out []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(read(t, page), ""), -1) {
		out = append(out, strings.ReplaceAll(regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return out
}

// TestQuotedNames: the files, folders and tests of this repository that pages quote as code exist.
func TestQuotedNames(t *testing.T) {
	goFiles, tests := map[string]bool{}, map[string]bool{}
	for _, f := range sources(t) {
		goFiles[filepath.Base(f.path)] = true
		for _, name := range testName.FindAllString(read(t, f.path), -1) {
			tests[name] = true
		}
	}
	top, err := os.ReadDir(".")
	require.NoError(t, err)
	folders := map[string]bool{}
	for _, entry := range top {
		folders[entry.Name()] = entry.IsDir()
	}
	for _, page := range slices.DeleteFunc(allPages(t), func(page string) bool { return page == "CHANGELOG.md" }) {
		text := fence.ReplaceAllString(read(t, page), "")
		for _, m := range quotedPath.FindAllStringSubmatch(text, -1) {
			if first, _, _ := strings.Cut(m[1], "/"); folders[first] && !strings.Contains(m[1], "/.work/") {
				if _, err := os.Stat(m[1]); err != nil {
					t.Errorf("%s: %s", page, err)
				}
			}
		}
		for _, m := range quotedGo.FindAllStringSubmatch(text, -1) {
			if !goFiles[m[1]] {
				t.Errorf("%s: no file is called %s", page, m[1])
			}
		}
		for _, name := range testName.FindAllString(text, -1) {
			if !tests[name] {
				t.Errorf("%s: no test is called %s", page, name)
			}
		}
	}
}

const (
	maxUseWords      = 25_000
	maxDecisionWords = 900 // two screens
	maxDecisionLines = 120
	headLines        = 5
)

var dateOf = regexp.MustCompile(`\b\d{1,2} [A-Z][a-z]{2,8} 20\d\d\b`)

// TestUse: the pages for users are short, and name no test.
func TestUse(t *testing.T) {
	words := 0
	for _, page := range partPages(t, "use") {
		text := read(t, page)
		words += len(strings.Fields(text))
		if name := regexp.MustCompile(`\bTest[A-Z]\w*`).FindString(strings.ReplaceAll(text, writtenByTest, "")); name != "" {
			t.Errorf("%s names the test %s", page, name)
		}
	}
	require.LessOrEqual(t, words, maxUseWords, "words of docs/use")
}

// writtenByTest is a mark for a program, which no reader sees.
const writtenByTest = "<!-- written by go test ./e2e -run TestQuestions -questions -->"

// TestDecisions: a page is two screens at most.
func TestDecisions(t *testing.T) {
	for _, page := range partPages(t, "decisions") {
		text := read(t, page)
		isRule := func(s string) bool { return strings.Trim(s, "|-:") == "" } // the lines of tables
		words := len(slices.DeleteFunc(strings.Fields(text), isRule))
		if lines := strings.Count(text, "\n"); words > maxDecisionWords || lines > maxDecisionLines {
			t.Errorf("%s has %d words in %d lines", page, words, lines)
		}
	}
}

// TestMeasured: a page begins with the date of its figures.
func TestMeasured(t *testing.T) {
	for _, page := range partPages(t, "measured") {
		if head := strings.Join(strings.SplitN(read(t, page), "\n", headLines+1)[:headLines], "\n"); !dateOf.MatchString(head) {
			t.Errorf("%s has no date in its first lines", page)
		}
	}
}
