// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/exit"
)

// runName is the command whose arguments are a program with its own arguments: without "--", all words after the
// program's name belong to the program.
const runName = "run"

// Order puts a command line, whose first element is the program's name, into the order that the library requires: the command,
// its flags, and its arguments after "--". The library would treat flags after the first argument as arguments and silently
// ignore them. A flag before the command's name belongs to the command; unknown flags stay, for the library to reject.
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
		if value == "" { // the value is the next argument
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

// cutValue splits a word of flags into one-letter flags without values, as in "-hp42", the flag that takes a value,
// with its name as the library requires, and the value with a preceding "=", or empty when it is missing. Without a
// flag that takes a value, f is nil and letters has the whole word.
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

// written returns the name under which a flag is passed to the library: always the same name for a flag that can be
// given several times, because the library rejects two names.
func written(f cli.Flag, name string) string {
	if isList(f) {
		name = f.Names()[0]
	}
	return Dash(name)
}

// bareValue returns the value of a flag that was given without one: for a duration with an initial value, if no
// duration follows. It is empty for all other flags.
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
