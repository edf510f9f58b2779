package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/view"
)

// shells are those for which there is a script; it asks the hidden command below what can follow.
var shells = []string{"bash", "zsh", "fish"}

//go:embed completion
var completionScripts embed.FS

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a script that completes gputrace's commands, options, formats and files in a shell",
		UsageText: "gputrace completion " + strings.Join(shells, "|"),
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			if c.NArg() != 1 || !slices.Contains(shells, shell) {
				return usage("which shell? give %s; see gputrace completion --help", joinOr(shells))
			}
			script, err := completionScripts.ReadFile("completion/gputrace." + shell)
			if err != nil {
				return err
			}
			_, err = c.App.Writer.Write(script)
			return err
		},
	}
}

// completeName is the command that the scripts call, with the words behind the program's name up to the one that is being
// typed.
const completeName = "__complete"

// completeCommand prints what can follow: a line with a completionKind, and for words a line for each, a word, a tab and what
// it is.
func completeCommand() *cli.Command {
	return &cli.Command{
		Name:            completeName,
		Hidden:          true,
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			kind, words := complete(c.App, c.Args().Slice())
			fmt.Fprintln(c.App.Writer, kind)
			for _, w := range words {
				fmt.Fprintf(c.App.Writer, "%s\t%s\n", w.word, w.what)
			}
			return nil
		},
	}
}

// completionKind says what is to be completed; the scripts know these words.
type completionKind string

const (
	completeWords   completionKind = "words"
	completeFiles   completionKind = "files"
	completeFolders completionKind = "folders"
)

// completion is a word that can be typed, and what it is.
type completion struct{ word, what string }

// flagValues are the values of flags that have a few only, by command and flag. The bare gputrace is record.
var flagValues = map[string][]string{
	"record format": append(formatNames(), "none"),
	"record memory": memoryModes,
	"run memory":    memoryModes,
	"doctor memory": memoryModes,
	"dump format":   dumpFormats,
	"who by":        holders.GroupingNames,
	"export format": formatNames(),
	"export by":     view.RowKindNames,
	"report by":     view.RowKindNames,
	"report at":     {"end", "peak"},
	"diff format":   diffFormatNames(),
	"diff by":       view.RowKindNames,
	"diff at":       {"end", "peak"},
	"export at":     {"end", "peak"},
}

// argumentValues are the arguments of commands. A command that is not here has files.
var argumentValues = map[string]func(app *cli.App) []completion{
	"":           commandNames,
	"help":       commandNames,
	"completion": func(*cli.App) []completion { return valuesOf(shells) },
	"record":     noArguments, "dump": noArguments, "who": noArguments, "doctor": noArguments, "man": noArguments, "version": noArguments,
}

func noArguments(*cli.App) []completion { return nil }

func commandNames(app *cli.App) []completion {
	var out []completion
	for _, c := range app.VisibleCommands() {
		out = append(out, completion{c.Name, c.Usage})
	}
	return out
}

func valuesOf(words []string) []completion {
	var out []completion
	for _, w := range words {
		out = append(out, completion{word: w})
	}
	return out
}

// complete says what the last word can become.
func complete(app *cli.App, words []string) (completionKind, []completion) {
	if len(words) == 0 {
		words = []string{""}
	}
	words = joinFlags(words)
	typed, current := words[:len(words)-1], words[len(words)-1]
	a := &arranger{app: app}
	a.findCommand(append([]string{app.Name}, typed...))
	if slices.Contains(typed, "--") {
		return a.arguments(current)
	}
	if len(typed) > 0 {
		if f := a.wantsValue(typed[len(typed)-1]); f != nil {
			return a.values(f, "", current)
		}
	}
	if name, value, ok := cutFlag(current); ok && isFlag(current) {
		if f := flagNamed(a.known(), name); f != nil && takesValue(f) {
			return a.values(f, strings.TrimSuffix(current, value), value)
		}
	}
	if strings.HasPrefix(current, "-") {
		return completeWords, begin(a.flagNames(typed), current)
	}
	return a.arguments(current)
}

// joinFlags undoes what bash does to "--format=json": it takes "=" for a word.
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

// wantsValue is the flag whose value the next word is; nil: it is none's.
func (a *arranger) wantsValue(word string) cli.Flag {
	name, _, hasValue := cutFlag(word)
	if f := flagNamed(a.known(), name); isFlag(word) && f != nil && takesValue(f) && !hasValue {
		return f
	}
	return nil
}

// values completes the value of a flag; prefix is written before it.
func (a *arranger) values(f cli.Flag, prefix, current string) (completionKind, []completion) {
	command := "record"
	if a.command != nil {
		command = a.command.Name
	}
	if values := flagValues[command+" "+f.Names()[0]]; values != nil {
		if i := strings.LastIndexByte(current, ','); i >= 0 { // a list
			prefix, current = prefix+current[:i+1], current[i+1:]
		}
		out := begin(valuesOf(values), current)
		for i := range out {
			out[i].word = prefix + out[i].word
		}
		return completeWords, out
	}
	if d, ok := f.(cli.DocGenerationFlag); ok {
		switch place, _ := placeholder(d.GetUsage()); place {
		case "FILE", "PATH":
			return completeFiles, nil
		case "FOLDER":
			return completeFolders, nil
		}
	}
	return completeWords, nil
}

func (a *arranger) arguments(current string) (completionKind, []completion) {
	command := ""
	if a.command != nil {
		command = a.command.Name
	}
	values, ok := argumentValues[command]
	if !ok {
		return completeFiles, nil
	}
	return completeWords, begin(values(a.app), current)
}

// flagNames are the flags of the command that are not there yet.
func (a *arranger) flagNames(typed []string) []completion {
	var out []completion
	for _, f := range a.known() {
		d, ok := f.(cli.DocGenerationFlag)
		_, many := f.(*cli.StringSliceFlag)
		if !ok || !many && slices.ContainsFunc(typed, func(w string) bool { return isFlag(w) && isFlagNamed(f, w) }) {
			continue
		}
		_, what := placeholder(d.GetUsage())
		for _, name := range f.Names() {
			out = append(out, completion{dash(name), what})
		}
	}
	return out
}

func isFlagNamed(f cli.Flag, word string) bool {
	name, _, _ := cutFlag(word)
	return slices.Contains(f.Names(), name)
}

// begin keeps the words that begin with what was typed.
func begin(words []completion, typed string) []completion {
	return slices.DeleteFunc(words, func(c completion) bool { return !strings.HasPrefix(c.word, typed) })
}
