package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
)

// arranger puts a command line into the order that the flag package reads: the command, its flags, its arguments. The flag
// package takes everything behind the first argument for arguments, and would ignore flags there without a word.
type arranger struct {
	app     *cli.App
	command *cli.Command // nil: the bare gputrace, which is record
	flags   []string     // each with its value
	words   []string     // arguments that are no flags, without the command's name
	given   map[string]bool
}

// arrange returns the command line, whose first element is the program's name, in that order. Flags may stand anywhere before
// "--"; a flag before the command's name is the command's. What is not known is an error that says what was probably meant.
func arrange(app *cli.App, args []string) ([]string, error) {
	a := &arranger{app: app, given: map[string]bool{}}
	at := a.findCommand(args)
	if a.command != nil && a.command.SkipFlagParsing {
		return args, nil
	}
	dashes := slices.Index(args, "--")
	for i := 1; i < len(args); i++ {
		var err error
		switch {
		case i == at:
		case args[i] == "--":
			a.words = append(a.words, args[i+1:]...)
			i = len(args)
		case !isFlag(args[i]):
			a.words = append(a.words, args[i])
		default:
			i, err = a.flag(args, i)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := a.checkWords(dashes > 0); err != nil {
		return nil, err
	}
	return a.line(args[0]), nil
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// line is the arranged command line.
func (a *arranger) line(program string) []string {
	out := []string{program}
	if a.command != nil {
		out = append(out, a.command.Name)
	}
	out = append(out, a.flags...)
	if len(a.words) > 0 {
		out = append(append(out, "--"), a.words...)
	}
	return out
}

// findCommand looks for the command's name, the first word that is neither a flag nor the value of one, and returns its
// index; 0: there is none.
func (a *arranger) findCommand(args []string) int {
	known := slices.Clone(a.app.Flags)
	for _, c := range a.app.Commands {
		known = append(known, c.Flags...)
	}
	for i := 1; i < len(args) && args[i] != "--"; i++ {
		if !isFlag(args[i]) {
			a.command = a.app.Command(args[i])
			if a.command == nil {
				return 0
			}
			return i
		}
		name, _, hasValue := cutFlag(args[i])
		if f := flagNamed(known, name); f != nil && takesValue(f) && !hasValue {
			i++
		}
	}
	return 0
}

// known are the flags of the command, with those that cli adds to it.
func (a *arranger) known() []cli.Flag {
	flags, added := a.app.Flags, []cli.Flag{cli.HelpFlag, cli.VersionFlag}
	if a.command != nil {
		flags, added = a.command.Flags, added[:1]
	}
	out := slices.Clone(flags)
	for _, f := range added {
		if flagNamed(out, f.Names()[0]) == nil {
			out = append(out, f)
		}
	}
	return out
}

// flag takes the flag at an index, and its value, and returns the index of the last of them.
func (a *arranger) flag(args []string, i int) (int, error) {
	name, value, hasValue := cutFlag(args[i])
	f := flagNamed(a.known(), name)
	if f == nil && !strings.HasPrefix(args[i], "--") {
		return a.letters(args, i)
	}
	if f == nil {
		return i, a.unknownFlag(args[i])
	}
	return a.add(f, args, i, name, value, hasValue)
}

// letters takes one-letter flags that are written together: "-hv", "-p42".
func (a *arranger) letters(args []string, i int) (int, error) {
	rest := args[i][1:]
	for rest != "" {
		r, size := utf8.DecodeRuneInString(rest)
		letter := string(r)
		rest = rest[size:]
		f := flagNamed(a.known(), letter)
		if f == nil {
			return i, a.unknownFlag(args[i])
		}
		if takesValue(f) {
			return a.add(f, args, i, letter, strings.TrimPrefix(rest, "="), rest != "")
		}
		if strings.HasPrefix(rest, "=") {
			return a.add(f, args, i, letter, rest[1:], true)
		}
		if _, err := a.add(f, args, i, letter, "", false); err != nil {
			return i, err
		}
	}
	return i, nil
}

// add notes a flag. Its value is the next argument when it needs one and has none.
func (a *arranger) add(f cli.Flag, args []string, i int, name, value string, hasValue bool) (int, error) {
	dashed := dash(name)
	if _, many := f.(*cli.StringSliceFlag); !many && a.given[f.Names()[0]] {
		return i, usage("%s is given twice; see %s", dashed, a.help())
	}
	a.given[f.Names()[0]] = true
	switch {
	case hasValue:
		a.flags = append(a.flags, dashed+"="+value)
	case !takesValue(f):
		a.flags = append(a.flags, dashed)
	case i+1 >= len(args) || args[i+1] == "--" || a.isKnown(args[i+1]):
		return i, usage("%s needs a value; see %s", dashed, a.help())
	default:
		i++
		a.flags = append(a.flags, dashed+"="+args[i])
	}
	return i, nil
}

// isKnown says whether an argument is one of the command's flags, and so not the value of another.
func (a *arranger) isKnown(arg string) bool {
	if !isFlag(arg) {
		return false
	}
	name, _, _ := cutFlag(arg)
	return flagNamed(a.known(), name) != nil
}

// checkWords refuses what is neither a command nor a process.
func (a *arranger) checkWords(dashes bool) error {
	if a.command != nil || len(a.words) == 0 || isNumber(a.words[0]) {
		return nil
	}
	if dashes {
		return usage("to start a program: gputrace run -- %s; see gputrace run --help", a.words[0])
	}
	return unknownCommand(a.app, a.words[0])
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func unknownCommand(app *cli.App, word string) error {
	var names []string
	for _, c := range app.VisibleCommands() {
		names = append(names, c.Name)
	}
	return usage("unknown command %q%s; see gputrace --help", word, didYouMean(word, names))
}

func (a *arranger) unknownFlag(arg string) error {
	name, _, _ := cutFlag(arg)
	var names []string
	for _, f := range a.known() {
		for _, n := range f.Names() {
			names = append(names, dash(n))
		}
	}
	written, _, _ := strings.Cut(arg, "=")
	return usage("unknown flag %s%s; see %s", written, didYouMean(dash(name), names), a.help())
}

// help is the command that explains this one.
func (a *arranger) help() string {
	if a.command == nil {
		return "gputrace --help"
	}
	return "gputrace " + a.command.Name + " --help"
}

// cutFlag splits "--name=value".
func cutFlag(arg string) (name, value string, hasValue bool) {
	name = strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
	return strings.Cut(name, "=")
}

// dash is how a flag's name is written.
func dash(name string) string {
	if utf8.RuneCountInString(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func flagNamed(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// leastGuessed is the length of the shortest word that is taken for another one with a mistake in it.
const leastGuessed = 3

// didYouMean names the word that was probably meant; nothing when none is near.
func didYouMean(word string, known []string) string {
	length := utf8.RuneCountInString(strings.TrimLeft(word, "-"))
	if length < leastGuessed {
		return ""
	}
	best, least := "", 1+length/3
	for _, k := range known {
		if d := distance(word, k); d <= least && (best == "" || d < least) {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", best)
}

// distance counts the letters that must be added, removed, changed or swapped with their neighbour to make one word of
// another (optimal string alignment).
func distance(x, y string) int {
	a, b := []rune(x), []rune(y)
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[1] {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		older, above, row := rows[0], rows[1], rows[2]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		rows = [3][]int{above, row, older}
	}
	return rows[1][len(b)]
}
