// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/exit"
)

// runName is the command whose arguments are a program with its own: without "--" all that follows the program's name is the program's.
const runName = "run"

// Order puts a command line, whose first element is the program's name, into the order that the library reads: the command, its flags,
// its arguments behind "--". The library takes everything behind the first argument for arguments, and would silently ignore flags there.
// A flag before the command's name is the command's; what is unknown stays, for the library to refuse.
func Order(app *cli.App, args []string) ([]string, error) {
	command, at := findCommand(app, args)
	if command != nil && command.SkipFlagParsing {
		return args, nil
	}
	known := flagsOf(app, command)
	program := command != nil && command.Name == runName && !slices.Contains(args, "--") // its flags are not ours
	ordered, words := args[:1:1], []string(nil)
	if command != nil {
		ordered, args = append(ordered, command.Name), slices.Delete(slices.Clone(args), at, at+1)
	}
	for rest := args[1:]; len(rest) > 0; {
		arg := rest[0]
		if rest = rest[1:]; arg == "--" {
			words = append(words, rest...)
			break
		} else if !isFlag(arg) {
			words = append(words, arg)
			if program {
				words, rest = append(words, rest...), nil
			}
			continue
		}
		letters, f, name, value := cutValue(known, arg)
		if letters != "" {
			ordered = append(ordered, letters)
		}
		if f == nil {
			continue
		}
		if value == "" {
			value = bareValue(f, rest)
		}
		if value == "" { // it is the next argument
			if len(rest) == 0 || rest[0] == "--" || isFlag(rest[0]) && isKnown(known, rest[0]) {
				return nil, exit.Usage("%s needs a value; see %s", name, helpOf(command))
			}
			value, rest = "="+rest[0], rest[1:]
		}
		ordered = append(ordered, name+value)
	}
	if command == nil && len(words) > 0 && slices.Contains(args, "--") && !isNumber(words[0]) {
		return nil, exit.Usage("to start a program: gputrace run -- %s; see gputrace run --help", words[0])
	}
	if len(words) > 0 {
		ordered = append(append(ordered, "--"), words...)
	}
	return ordered, nil
}

// cutValue splits what is typed as a flag: the one-letter flags without values that come first, as in "-hp42", then the flag that takes a
// value, its name as the library is to read it, and the value with "=" in front, empty when it is missing. Without such a flag f is nil,
// and everything is in letters.
func cutValue(known []cli.Flag, arg string) (letters string, f cli.Flag, name, value string) {
	name, value, hasValue := cutFlag(arg)
	if f := flagNamed(known, name); f != nil && takesValue(f) {
		if hasValue {
			value = "=" + value
		}
		return "", f, written(f, name), value
	} else if f != nil || strings.HasPrefix(arg, "--") {
		return arg, nil, "", ""
	}
	for i, letter := range arg[1:] {
		f := flagNamed(known, string(letter))
		if f == nil {
			break
		}
		if !takesValue(f) {
			continue
		}
		if i > 0 {
			letters = arg[:1+i]
		}
		if value = arg[1+i+len(string(letter)):]; value != "" {
			value = "=" + strings.TrimPrefix(value, "=")
		}
		return letters, f, written(f, string(letter)), value
	}
	return arg, nil, "", ""
}

// written is how a flag comes to the library: under one name where it can be given several times, which the library refuses under two.
func written(f cli.Flag, name string) string {
	if isList(f) {
		name = f.Names()[0]
	}
	return Dash(name)
}

// bareValue is the value of a flag that may be given without one: of a duration that has an initial value, when no duration follows. It
// is empty for all others.
func bareValue(f cli.Flag, rest []string) string {
	d, ok := f.(*cli.DurationFlag)
	if !ok || d.Value == 0 {
		return ""
	}
	if len(rest) > 0 {
		if _, err := time.ParseDuration(rest[0]); err == nil {
			return ""
		}
	}
	return "=" + d.Value.String()
}
