// SPDX-License-Identifier: Apache-2.0

// Package junit writes what became of the rules of a gate as JUnit's XML, which CI systems show: a test suite for each recording, a test
// case for each rule.
package junit

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/gputrace/gputrace/analysis/gate"
	"github.com/gputrace/gputrace/internal/words"
)

// Write writes a check; texts says in sentences what became of a rule. A rule that is not met is a failure, one that could not be judged
// an error.
func Write(w io.Writer, c *gate.Check, texts func(*gate.Result) []string) error {
	out := bufio.NewWriter(w)
	all := counts{}
	for i := range c.Reports {
		all.add(&c.Reports[i])
	}
	fmt.Fprintf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"gputrace check\"%s>\n", all)
	for i := range c.Reports {
		suite(out, &c.Reports[i], texts)
	}
	fmt.Fprintln(out, "</testsuites>")
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the test cases: %w", err)
	}
	return nil
}

// counts are numbers of rules.
type counts struct{ tests, failures, errors int }

func (c *counts) add(r *gate.Report) {
	for i := range r.Results {
		c.tests++
		switch r.Results[i].Status {
		case gate.Failed:
			c.failures++
		case gate.Unknown:
			c.errors++
		}
	}
}

// String is the attributes.
func (c counts) String() string {
	return fmt.Sprintf(` tests="%d" failures="%d" errors="%d"`, c.tests, c.failures, c.errors)
}

func suite(w io.Writer, r *gate.Report, texts func(*gate.Result) []string) {
	n := counts{}
	n.add(r)
	fmt.Fprintf(w, "  <testsuite name=%s%s>\n", quoted(r.Name), n)
	for i := range r.Results {
		x := &r.Results[i]
		lines := texts(x)
		fmt.Fprintf(w, "    <testcase classname=%s name=%s>", quoted(r.Name), quoted(string(x.Rule)))
		switch x.Status {
		case gate.Passed:
			fmt.Fprintf(w, "<system-out>%s</system-out>", escaped(strings.Join(lines, "\n")))
		case gate.Failed:
			fmt.Fprintf(w, "<failure message=%s>%s</failure>", quoted(lines[0]), escaped(strings.Join(lines, "\n")))
		case gate.Unknown:
			fmt.Fprintf(w, "<error message=%s>%s</error>", quoted(lines[0]), escaped(strings.Join(lines, "\n")))
		}
		fmt.Fprintln(w, "</testcase>")
	}
	fmt.Fprintln(w, "  </testsuite>")
}

// escaped is a text as XML has it. Names come from the program that was traced: what XML cannot have is replaced.
func escaped(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = html.EscapeString(words.Line(lines[i]))
	}
	return strings.Join(lines, "\n")
}

func quoted(s string) string { return `"` + escaped(s) + `"` }
