// SPDX-License-Identifier: Apache-2.0

package gputrace_test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// banned are words that are not used in exported names, comments, docs and texts that users see. docs/use/glossary.md has the
// words that are. A pattern matches whole words, in any case.
var banned = []struct{ pattern, instead, why string }{
	{`books?|booked|bookkeeping`, "allocator state, totals, account; counted", "an accounting metaphor that had three meanings"},
	{`holes?`, "inactive split, loss interval, unmapped range", "it had three meanings"},
	{`told`, "known, reported, shown, returned, encoded", "it had six meanings"},
	{`lives|lived`, "is in use, is allocated, is live; lifetimes", "memory has no life; allocators say in use"},
	{`born`, "allocated", "memory has no life"},
	{`gone`, "freed, removed, ended", "it does not say what happened"},
	{`dies|died`, "ended, was killed; freed", "neither memory nor processes have a life"},
	{`takes? down|taken down|taking down`, "records, notes", "it also means the opposite"},
	{`without a word`, "silently", "private idiom"},
	{`stands? (in|on|at|beside|above|below|before|behind|there)`, "is", "text does not stand"},
	{`comes? through|came through`, "is received; the opposite is lost", "private idiom"},
	{`under (our|its) eyes|behind (us|our backs?)`, "while it is read; later", "private idiom"},
	{`resyncs?|resynced|resyncing`, "reconcile, check", "the live set is reconciled with the allocator state"},
	{`naming`, "holder scan; symbol names", "it had two meanings"},
	{`patience`, "timeout", "Go says timeout"},
	{`happenings?`, "event", "one word for one thing"},
	{`in vain`, "without a result", "private idiom"},
	{`(memory|it|heap) (goes|went) by`, "is read; uses", "private idiom"},
	{`has nobody`, "does not", "private idiom"},
}

// bannedFlags are flags that were renamed.
var bannedFlags = regexp.MustCompile(`--no-names\b`)

// bannedDoc is how no comment of a function begins: "x gives a its b" is read twice. "x returns b", "x sets the b of a" are not.
var bannedDoc = regexp.MustCompile(`^// \w+ gives\b`)

// bannedNames are words that no identifier has, exported or not, in tests too: they had several meanings.
var bannedNames = regexp.MustCompile(`(?i)\b(?:told|books?|booked|sole)\b`)

// saysOldWords are files whose subject is the old words.
var saysOldWords = []string{"CHANGELOG.md", "words_test.go"}

// text is a piece of what people read.
type text struct {
	path string
	line int
	what string // "comment", "name", "string", "page"
	text string
}

// wordsFound is a banned word and where it is.
type wordsFound struct {
	text
	word, instead string
}

// TestWords: one word for one thing.
func TestWords(t *testing.T) {
	all := append(goTexts(t), fileTexts(t)...)
	require.Greater(t, len(all), 5000, "the texts were not found")
	for _, f := range findBanned(all) {
		t.Errorf("%s:%d: %s has %q: rather %s", f.path, f.line, f.what, f.word, f.instead)
	}
}

// TestNames: identifiers and names of files have no words of our own either.
func TestNames(t *testing.T) {
	for _, f := range sources(t) {
		if slices.Contains(saysOldWords, f.path) {
			continue
		}
		if word := bannedNames.FindString(strings.ReplaceAll(path.Base(f.path), "_", " ")); word != "" {
			t.Errorf("%s: the name of the file has %q", f.path, word)
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && bannedNames.MatchString(splitName(id.Name)) {
				t.Errorf("%s:%d: %s", f.path, f.set.Position(id.Pos()).Line, id.Name)
			}
			return true
		})
	}
}

// TestBannedWords: the patterns find what they should, also in names.
func TestBannedWords(t *testing.T) {
	for s, want := range map[string]string{
		"the allocator's books": "books", "a hole.": "hole", "Holes": "Holes", "whole": "", "alive": "", "live": "",
		"takes down": "takes down", "unfolded": "", "It was told": "told", "a toldValue": "", "stands for": "", "with --no-names": "--no-names",
	} {
		found := findBanned([]text{{path: "a", text: s}})
		if want == "" {
			require.Empty(t, found, s)
			continue
		}
		require.Len(t, found, 1, s)
		require.Equal(t, want, found[0].word)
	}
	require.Equal(t, "Loss Holes At", splitName("LossHolesAt"))
	require.Equal(t, "OOM Count", splitName("OOMCount"))
	require.Equal(t, "Keep\n\nOn ", withoutCode("Keep\n`books`\nOn `x`"))
}

func findBanned(all []text) []wordsFound {
	var out []wordsFound
	var any []string
	for _, b := range banned {
		any = append(any, b.pattern)
	}
	one := regexp.MustCompile(`(?i)\b(?:` + strings.Join(any, "|") + `)\b`) // most texts have none: one look
	suspects := slices.DeleteFunc(slices.Clone(all), func(s text) bool { return !one.MatchString(s.text) })
	for _, b := range banned {
		re := regexp.MustCompile(`(?i)\b(?:` + b.pattern + `)\b`)
		for _, s := range suspects {
			for _, at := range re.FindAllStringIndex(s.text, -1) {
				out = append(out, wordsFound{s.at(at[0]), s.text[at[0]:at[1]], b.instead})
			}
		}
	}
	for _, s := range all {
		for _, at := range bannedFlags.FindAllStringIndex(s.text, -1) {
			out = append(out, wordsFound{s.at(at[0]), s.text[at[0]:at[1]], "--no-holders"})
		}
		if word := bannedDoc.FindString(s.text); word != "" && s.what == "comment" {
			out = append(out, wordsFound{s, word, "returns, sets, adds"})
		}
	}
	return out
}

// at sets the line of the text to that of an offset in it.
func (s text) at(offset int) text {
	s.line += strings.Count(s.text[:offset], "\n")
	return s
}

// goTexts are the comments, the exported names and, of what is no test, the strings of all Go files.
func goTexts(t *testing.T) []text {
	var out []text
	for _, f := range sources(t) {
		if slices.Contains(saysOldWords, f.path) {
			continue
		}
		add := func(pos token.Pos, what, s string) {
			out = append(out, text{f.path, f.set.Position(pos).Line, what, s})
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				add(c.Pos(), "comment", c.Text)
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.Field:
				n.Tag = nil // names of a file format
			case *ast.Ident:
				if n.IsExported() && !f.test {
					add(n.Pos(), "name", splitName(n.Name))
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && !f.test {
					s, _ := strconv.Unquote(n.Value) // the parser has checked it
					add(n.Pos(), "string", s)
				}
			}
			return true
		})
	}
	return out
}

// splitName puts spaces between the words of a name.
func splitName(name string) string {
	var out strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		if i > 0 && upper && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			out.WriteByte(' ')
		}
		out.WriteRune(r)
	}
	return out.String()
}

var (
	inlineCode = regexp.MustCompile("`[^`\n]+`")
	cComment   = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
)

// withoutCode removes what is quoted as code from a page: names of fields and files are not ours to choose any more.
func withoutCode(page string) string { return inlineCode.ReplaceAllString(page, "") }

// fileTexts are the pages, and the comments of C and JavaScript.
func fileTexts(t *testing.T) []text {
	var out []text
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		name = filepath.ToSlash(name)
		if d.IsDir() || slices.Contains(saysOldWords, name) {
			return nil
		}
		switch path.Ext(name) {
		case ".md":
			data, err := os.ReadFile(name)
			out = append(out, text{name, 1, "page", withoutCode(string(data))})
			return err
		case ".c", ".h", ".js":
			data, err := os.ReadFile(name)
			for _, at := range cComment.FindAllIndex(data, -1) {
				line := 1 + strings.Count(string(data[:at[0]]), "\n")
				out = append(out, text{name, line, "comment", string(data[at[0]:at[1]])})
			}
			return err
		}
		return nil
	})
	require.NoError(t, err)
	return out
}
