// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/exit"
)

// Order puts a command line, whose first element is the program's name, into the order that the library reads: the command, its flags,
// its arguments behind "--". The library takes everything behind the first argument for arguments, and would silently ignore flags there.
// A flag before the command's name is the command's; what is unknown stays, for the library to refuse.
func Order(app *cli.App, args []string) ([]string, error) {
	command, at := findCommand(app, args)
	if command != nil && command.SkipFlagParsing {
		return args, nil
	}
	known := flagsOf(app, command)
	var flags, words []string
	for i := 1; i < len(args); i++ {
		switch arg := args[i]; {
		case i == at:
		case arg == "--":
			words = append(words, args[i+1:]...)
			i = len(args)
		case !isFlag(arg):
			words = append(words, arg)
		default:
			letters, flag, value, complete := cutValue(known, arg)
			if letters != "" {
				flags = append(flags, letters)
			}
			if bare := bareValue(known, flag, args[i+1:]); !complete && bare != "" {
				value, complete = "="+bare, true
			}
			if !complete { // the value is the next argument
				i++
				if i == len(args) || args[i] == "--" || isFlag(args[i]) && isKnown(known, args[i]) {
					return nil, exit.Usage("%s needs a value; see %s", flag, helpOf(command))
				}
				value = "=" + args[i]
			}
			if flag != "" {
				flags = append(flags, flag+value)
			}
		}
	}
	if command == nil && len(words) > 0 && slices.Contains(args, "--") && !isNumber(words[0]) {
		return nil, exit.Usage("to start a program: gputrace run -- %s; see gputrace run --help", words[0])
	}
	out := args[:1:1]
	if command != nil {
		out = append(out, command.Name)
	}
	out = append(out, flags...)
	if len(words) > 0 {
		out = append(append(out, "--"), words...)
	}
	return out, nil
}

// cutValue splits a flag that takes a value: the one-letter flags without values that are written before it, as in "-hp42", the flag
// itself, and the value with "=" in front. complete is false when the value is missing. Anything else comes back in letters.
func cutValue(known []cli.Flag, arg string) (letters, flag, value string, complete bool) {
	name, value, hasValue := cutFlag(arg)
	if f := flagNamed(known, name); f != nil && takesValue(f) {
		return "", written(f, name), "=" + value, hasValue
	}
	if isKnown(known, arg) || strings.HasPrefix(arg, "--") {
		return arg, "", "", true
	}
	for i, letter := range arg {
		f := flagNamed(known, string(letter))
		switch {
		case i == 0 || f != nil && !takesValue(f):
			continue
		case f == nil:
			return arg, "", "", true
		case i > 1:
			letters = arg[:i]
		}
		rest := arg[i+len(string(letter)):]
		return letters, written(f, string(letter)), "=" + strings.TrimPrefix(rest, "="), rest != ""
	}
	return arg, "", "", true
}

// written is how a flag comes to the library: under one name where it can be given several times, which the library refuses under two.
func written(f cli.Flag, name string) string {
	if isList(f) {
		name = f.Names()[0]
	}
	return Dash(name)
}

// findCommand looks for the command's name: the first word that is neither a flag nor the value of one. It returns its index too; nil
// and 0: there is none.
func findCommand(app *cli.App, args []string) (*cli.Command, int) {
	all := slices.Clone(app.Flags)
	for _, c := range app.Commands {
		all = append(all, c.Flags...)
	}
	for i := 1; i < len(args) && args[i] != "--"; i++ {
		if !isFlag(args[i]) {
			if c := app.Command(args[i]); c != nil {
				return c, i
			}
			return nil, 0
		}
		if _, _, _, complete := cutValue(all, args[i]); !complete {
			i++
		}
	}
	return nil, 0
}

// bareValue is the value of a flag that may be given without one: of a duration that has an initial value, when no duration
// follows. It is empty for all others.
func bareValue(known []cli.Flag, flag string, rest []string) string {
	name, _, _ := cutFlag(flag)
	f, ok := flagNamed(known, name).(*cli.DurationFlag)
	if !ok || f.Value == 0 {
		return ""
	}
	if len(rest) > 0 {
		if _, err := time.ParseDuration(rest[0]); err == nil {
			return ""
		}
	}
	return f.Value.String()
}

// flagsOf are the flags of a command with those that the library adds to it; nil: of the program itself.
func flagsOf(app *cli.App, c *cli.Command) []cli.Flag {
	if c == nil {
		return append(slices.Clone(app.Flags), cli.HelpFlag, cli.VersionFlag)
	}
	return append(slices.Clone(c.Flags), cli.HelpFlag)
}

// helpOf is the command line that explains a command.
func helpOf(c *cli.Command) string {
	if c == nil {
		return "gputrace --help"
	}
	return "gputrace " + c.Name + " --help"
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

func isKnown(known []cli.Flag, arg string) bool {
	name, _, _ := cutFlag(arg)
	return flagNamed(known, name) != nil
}

// cutFlag splits "--name=value".
func cutFlag(arg string) (name, value string, hasValue bool) {
	return strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
}

// Dash is how a flag's name is written.
func Dash(name string) string {
	if len([]rune(name)) == 1 {
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

// isList reports whether a flag can be given several times.
func isList(f cli.Flag) bool {
	g, ok := f.(*cli.GenericFlag)
	if !ok {
		return false
	}
	l, ok := g.Value.(interface{ IsList() bool })
	return ok && l.IsList()
}
