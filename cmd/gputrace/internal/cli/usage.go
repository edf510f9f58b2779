// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"github.com/xrash/smetrics"

	"github.com/gputrace/gputrace/internal/exit"
)

// refused matches the error of package flag for an invalid value.
var refused = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-([^ :]+): (.*)$`)

// unknownFlag is the prefix of its error for an unknown flag.
const unknownFlag = "flag provided but not defined: -"

// UsageError rewrites an error of the library: the flag first, and at the end the command that explains it. It is a
// cli.OnUsageErrorFunc.
func UsageError(c *cli.Context, err error, isCommand bool) error {
	command := c.Command
	if !isCommand {
		command = nil
	}
	text := err.Error()
	if m := refused.FindStringSubmatch(text); m != nil {
		if m[3] == errTwice.Error() {
			return explained(command, Dash(m[2])+" is given twice")
		}
		return explained(command, fmt.Sprintf("%s %s: %s", Dash(m[2]), m[1], m[3]))
	}
	if name, ok := strings.CutPrefix(text, unknownFlag); ok {
		known := flagsOf(c.App, command)
		guess := cli.SuggestFlag(known, name, true)
		for _, f := range known {
			if n, ok := swapped(name, f.Names()); ok {
				guess = Dash(n)
			}
		}
		return explained(command, "unknown flag "+Dash(name)+meant(name, strings.TrimLeft(guess, "-"), guess))
	}
	return exit.Usage("%w; see %s", err, helpOf(command))
}

// explained returns a usage error that ends with the help to read; nil: the program's help.
func explained(command *cli.Command, text string) error {
	see := "; see "
	if strings.HasSuffix(text, "?") {
		see = " See "
	}
	return exit.Usage("%s%s%s", text, see, helpOf(command))
}

// CheckWord rejects a first argument of the program itself that is neither a command nor a PID.
func CheckWord(c *cli.Context) error {
	if word := c.Args().First(); word != "" && !isNumber(word) {
		return UnknownCommand(c.App, word)
	}
	return nil
}

// UnknownCommand returns the error for a word that should be a command and is not.
func UnknownCommand(app *cli.App, word string) error {
	var guess string
	// The library returns its guess in a sentence.
	_, _ = fmt.Sscanf(cli.SuggestCommand(app.VisibleCommands(), word), cli.SuggestDidYouMeanTemplate, &guess)
	for _, c := range app.VisibleCommands() {
		if n, ok := swapped(word, c.Names()); ok {
			guess = n
		}
	}
	return explained(nil, fmt.Sprintf("unknown command %q%s", word, meant(word, guess, guess)))
}

// leastLike is the minimum similarity of a guess, by the library's measure. The library always guesses; less similar
// guesses are not shown.
const leastLike = 0.8

// swapped returns the name that has the letters of a word in another order.
func swapped(word string, names []string) (string, bool) {
	i := slices.IndexFunc(names, func(n string) bool { return len(n) > 2 && letters(n) == letters(word) })
	if i < 0 {
		return "", false
	}
	return names[i], true
}

// letters returns the letters of a word, sorted.
func letters(word string) string {
	b := []byte(strings.ToLower(word))
	slices.Sort(b)
	return string(b)
}

// meant returns the question whether a guess was meant; empty if the guess is too different.
func meant(word, guess, shown string) string {
	const boost, prefix = 0.7, 4             // as in the library's suggestions.go
	alike := letters(word) == letters(guess) // in a word of three letters, swapping two leaves no similarity by the measure
	if len(word) < 3 || len(guess) < 2 || !alike && smetrics.JaroWinkler(strings.ToLower(word), guess, boost, prefix) < leastLike {
		return ""
	}
	return fmt.Sprintf(": did you mean %q?", shown)
}
