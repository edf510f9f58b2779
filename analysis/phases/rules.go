// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/gputrace/gputrace/event"
)

//go:embed rules.txt
var builtIn string

// training is what a rule has in place of a phase when it ends the search for an evaluation.
const training = "training"

// loaded is what a rule has in place of a phase when it reads tensors from a file: whose they will be is not known there.
const loaded = "loaded"

// Limits of a file of rules.
const (
	maxRules    = 10_000
	maxRuleLine = 4096
)

// rule is one line of a file of rules.
type rule struct {
	phase    Phase    // empty: it is of a category, training or loaded
	category Category // empty: it is of a phase, training or loaded
	loaded   bool
	weak     bool // it counts only where no other rule of phases does
	outer    bool // it counts only over a phase that was found before
	user     bool
	native   bool
	place    *regexp.Regexp // of a Python file, or of the name of a native module; nil: any
	function *regexp.Regexp
}

// Rules say which functions make a phase, and what memory is for. They do not change; safe for concurrent use. nil: the built-in ones.
type Rules struct {
	list []rule // the user's first
}

// standard are the built-in rules. Their expressions take 7 ms to compile, which a command without phases does not need.
var standard = sync.OnceValue(func() []rule { return mustRead(builtIn) })

func mustRead(text string) []rule {
	list, err := read(strings.NewReader(text), false)
	if err != nil {
		panic(err)
	}
	return list
}

// Read reads a user's file of rules, in the format of docs/use/phases.md. They go before the built-in ones. An error has the number of
// the line.
func Read(r io.Reader) (*Rules, error) {
	own, err := read(r, true)
	if err != nil {
		return nil, err
	}
	return &Rules{list: append(own, standard()...)}, nil
}

// all are the rules, in their order.
func (r *Rules) all() []rule {
	if r == nil {
		return standard()
	}
	return r.list
}

func read(r io.Reader, user bool) ([]rule, error) {
	var out []rule
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxRuleLine)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if strings.TrimSpace(text) == "" {
			continue
		}
		one, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(out) == maxRules {
			return nil, fmt.Errorf("line %d: more than %d rules", n, maxRules)
		}
		one.user = user
		out = append(out, one)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return out, nil
}

// parse reads "forward torch/nn/functional.py:*" or "backward !torch::autograd::Engine::*".
func parse(line string) (rule, error) {
	word, what, _ := strings.Cut(strings.TrimSpace(line), " ")
	what = strings.TrimSpace(what)
	if before, after, ok := strings.Cut(word, "\t"); ok {
		word, what = before, strings.TrimSpace(after+" "+what)
	}
	if what == "" {
		return rule{}, errors.New("no function: want PHASE FILE:FUNCTION or PHASE !SYMBOL")
	}
	name, weak := strings.CutSuffix(word, "?")
	name, outer := strings.CutSuffix(name, "+")
	out := rule{weak: weak, outer: outer}
	switch {
	case isPhase(name) && !(weak && outer):
		out.phase = Phase(name)
	case isCategory(word):
		out.category = Category(word)
	case word == loaded:
		out.loaded = true
	case word != training:
		return rule{}, fmt.Errorf("%q is neither a phase nor a category", word)
	}
	if module, symbol, ok := strings.Cut(what, "!"); ok {
		out.native = true
		out.function = glob("^", symbol)
		if module != "" {
			out.place = glob("^", module)
		}
		return out, nil
	}
	at := strings.LastIndexByte(what, ':')
	if at < 0 {
		return rule{}, fmt.Errorf("%q is neither FILE:FUNCTION nor !SYMBOL", what)
	}
	out.function = glob(`(?:^|\.)`, what[at+1:])
	if what[:at] != "*" {
		out.place = glob("(?:^|/)", what[:at])
	}
	return out, nil
}

// glob is a pattern in which a star is for any text.
func glob(from, pattern string) *regexp.Regexp {
	return regexp.MustCompile(from + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
}

// matches says whether a rule is of a frame.
func (r *rule) matches(f *event.Frame) bool {
	if r.native != (f.Kind == event.FrameNative) {
		return false
	}
	if r.place != nil {
		place := f.File
		if r.native {
			if f.Module == nil {
				return false
			}
			place = f.Module.Name()
		}
		if !r.place.MatchString(place) {
			return false
		}
	}
	return r.function.MatchString(f.Func)
}
