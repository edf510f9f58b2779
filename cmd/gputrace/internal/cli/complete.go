// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// CompletionFlag is the last word of a command line to complete, as the library defines it. A script must not add it to
// a command line that contains "--": the library would run that.
const CompletionFlag = "--generate-bash-completion"

// What to complete: the first line that a completion prints, which the scripts evaluate. For words, one line each
// follows: the word, a tab and its description.
const (
	completeWords   = "words"
	completeFiles   = "files"
	completeFolders = "folders"
)

// Completion is a word that can be typed, and its description.
type Completion struct{ Word, What string }

// Arguments lists the possible arguments of a command; nil: files.
type Arguments func(app *cli.App) []Completion

// Complete returns a command's cli.BashCompleteFunc. line is the whole command line without CompletionFlag, ending with
// the word that is being typed; arguments has those of each command by name, "" for the program itself.
func Complete(line []string, arguments map[string]Arguments) cli.BashCompleteFunc {
	return func(c *cli.Context) {
		words := joinFlags(slices.Clone(line))
		typed, current := words[:len(words)-1], words[len(words)-1]
		command, _ := findCommand(c.App, typed)
		kind, found := complete(flagsOf(c.App, command), typed, current, func() (string, []Completion) {
			name := ""
			if command != nil {
				name = command.Name
			}
			list, ok := arguments[name]
			if !ok {
				return completeFiles, nil
			}
			return completeWords, list(c.App)
		})
		fmt.Fprintln(c.App.Writer, kind)
		for _, w := range found {
			if strings.HasPrefix(w.Word, current) {
				fmt.Fprintf(c.App.Writer, "%s\t%s\n", w.Word, w.What)
			}
		}
	}
}

// complete returns what the current word can become; not all of the returned words begin with it.
func complete(known []cli.Flag, typed []string, current string, arguments func() (string, []Completion)) (string, []Completion) {
	before := typed[len(typed)-1]
	if isFlag(before) {
		if name, _, hasValue := cutFlag(before); !hasValue {
			if f := flagNamed(known, name); f != nil && takesValue(f) {
				return values(f, "", current)
			}
		}
	}
	if !strings.HasPrefix(current, "-") {
		return arguments()
	}
	if name, value, ok := cutFlag(current); ok {
		if f := flagNamed(known, name); f != nil && takesValue(f) {
			return values(f, strings.TrimSuffix(current, value), value)
		}
	}
	return completeWords, flagNames(known, typed)
}

// joinFlags undoes bash's splitting of "--format=json" at "=".
func joinFlags(words []string) []string {
	var out []string
	for i, w := range words {
		switch {
		case w == "=" && i == len(words)-1:
			out = append(out, "")
		case w != "=" || i == 0 || !isFlag(words[i-1]):
			out = append(out, w)
		}
	}
	return out
}

// values completes the value of a flag; prefix is written before it.
func values(f cli.Flag, prefix, current string) (string, []Completion) {
	if g, ok := f.(*cli.GenericFlag); ok {
		if v, ok := g.Value.(interface{ Choices() []string }); ok && v.Choices() != nil {
			prefix += current[:strings.LastIndexByte(current, ',')+1] // of a list
			var out []Completion
			for _, w := range v.Choices() {
				out = append(out, Completion{Word: prefix + w})
			}
			return completeWords, out
		}
	}
	if d, ok := f.(cli.DocGenerationFlag); ok {
		switch place, _ := Placeholder(d.GetUsage()); place {
		case "FILE", "PATH":
			return completeFiles, nil
		case "FOLDER":
			return completeFolders, nil
		}
	}
	return completeWords, nil
}

// flagNames returns the flags that were not typed yet.
func flagNames(known []cli.Flag, typed []string) []Completion {
	var out []Completion
	for _, f := range known {
		there := func(w string) bool { return isFlag(w) && isKnown([]cli.Flag{f}, w) }
		d, ok := f.(cli.DocGenerationFlag)
		if !ok || !isList(f) && slices.ContainsFunc(typed, there) {
			continue
		}
		_, what := Placeholder(d.GetUsage())
		for _, name := range f.Names() {
			out = append(out, Completion{Dash(name), what})
		}
	}
	return out
}

// Placeholder splits the name of a flag's value, in backquotes, from the usage text, as the library does for its help.
func Placeholder(usage string) (name, text string) {
	before, rest, ok := strings.Cut(usage, "`")
	name, after, closed := strings.Cut(rest, "`")
	if !ok || !closed {
		return "", usage
	}
	return name, before + name + after
}
