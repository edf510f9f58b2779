// SPDX-License-Identifier: Apache-2.0

package gputrace_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "TestLicenses adds the line that a file lacks")

// commented are how a line of a source file is made a comment, by the ending of its name.
var commented = map[string]string{
	".go": "// %", ".s": "// %", ".S": "// %", ".js": "// %", ".c": "/* % */", ".h": "/* % */", ".css": "/* % */",
	".html": "<!-- % -->", ".py": "# %", ".sh": "# %", ".zsh": "# %", ".fish": "# %", ".yml": "# %", "": "# %",
}

// byFolder are the folders whose files have no line each: REUSE.toml states their license. A line in a program of testdata would
// move the lines that tests name.
var byFolder = []string{"testdata", "docs"}

const (
	identifier   = "SPDX-License-Identifier: "
	licenseWords = identifier + "Apache-2.0"
	// kernelWords are for what runs in the kernel, whose helpers are for GPL programs.
	kernelWords  = identifier + "GPL-2.0-only OR BSD-2-Clause"
	withinBytes  = 200 // of the beginning of a file
	shellComment = "#"
)

// TestLicenses: each source file says under which license it is, at its beginning.
func TestLicenses(t *testing.T) {
	checked := 0
	for _, name := range sourceFiles(t) {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		words := licenseWords
		if dir, ext := path.Dir(name), path.Ext(name); dir == "bpf" && (ext == ".c" || ext == ".h") {
			words = kernelWords
		}
		if *update && !bytes.Contains(b, []byte(identifier)) {
			b = withLine(b, strings.Replace(commented[path.Ext(name)], "%", words, 1))
			require.NoError(t, os.WriteFile(name, b, 0o644))
		}
		if head := b[:min(len(b), withinBytes)]; !bytes.Contains(head, []byte(words)) {
			t.Errorf("%s does not say %q at its beginning: go test . -run TestLicenses -update", name, words)
		}
		checked++
	}
	require.Greater(t, checked, 400)
	stated := read(t, "REUSE.toml")
	for _, folder := range byFolder {
		require.Contains(t, stated, `"**/`+folder+`/**"`)
	}
}

// TestLicenseTexts: the texts of all licenses that are named are there.
func TestLicenseTexts(t *testing.T) {
	for name, words := range map[string]string{
		"LICENSE": "Apache License", "LICENSES/Apache-2.0.txt": "Apache License",
		"LICENSES/GPL-2.0-only.txt": "GNU GENERAL PUBLIC LICENSE", "LICENSES/BSD-2-Clause.txt": "Redistribution and use",
	} {
		require.Contains(t, read(t, name), words, name)
	}
}

// sourceFiles are the files that are written by hand and in which a comment can be: sources, scripts, workflows.
// Recordings that "make demo" left here (gputrace.*) are left out.
func sourceFiles(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{".git", "dist"}, d.Name()) || slices.Contains(byFolder, d.Name())):
			return filepath.SkipDir
		case d.IsDir() && strings.HasPrefix(name, "gputrace."):
			return filepath.SkipDir
		case d.Type().IsRegular() && isSource(t, name):
			out = append(out, filepath.ToSlash(name))
		}
		return nil
	})
	require.NoError(t, err)
	return out
}

func isSource(t *testing.T, name string) bool {
	t.Helper()
	ext := path.Ext(name)
	if _, ok := commented[ext]; !ok {
		return false
	}
	if ext == "" { // a script, or no text
		return bytes.HasPrefix(head(t, name), []byte("#!"))
	}
	if ext != ".go" {
		return !bytes.Contains(head(t, name), []byte("DO NOT EDIT"))
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	return !ast.IsGenerated(parsed)
}

// head is the beginning of a file.
func head(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return b[:min(len(b), withinBytes)]
}

// withLine puts a line at the beginning of a file, behind a line that must be the first: "#!", "#compdef", a document type.
func withLine(b []byte, line string) []byte {
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if bytes.HasPrefix(first, []byte(shellComment+"!")) || bytes.HasPrefix(first, []byte("#compdef")) || bytes.HasPrefix(first, []byte("<!")) {
		return slices.Concat(first, []byte("\n"+line+"\n"), rest)
	}
	gap := ""
	if strings.HasPrefix(line, "//") {
		gap = "\n" // so that it is no part of a package's comment
	}
	return slices.Concat([]byte(line+"\n"+gap), b)
}
