// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"fmt"
	"math/rand"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/varpath"

	scan "github.com/gputrace/gputrace/inspect/holders"
)

// tree makes the paths of random programs: variables with containers in containers, objects with attributes, and models.
type tree struct {
	*rand.Rand
	paths []scan.Path
}

func (t *tree) grow(p scan.Path, depth int) {
	if depth == 0 || t.Intn(5) == 0 {
		t.paths = append(t.paths, p)
		return
	}
	n := 1 + t.Intn(5)
	words := []string{"a", "loss", "block", "it's", "x[0]", "user.name"}
	which := words[t.Intn(len(words))]
	shape := t.Intn(4)
	for i := range n {
		next := append(scan.Path{}, p...)
		switch shape {
		case 0:
			next = append(next, index(int64(i*(1+t.Intn(2)))))
		case 1:
			next = append(next, word(fmt.Sprint(which, i)))
		case 2:
			next = append(next, word(words[i%len(words)]))
		case 3:
			next = append(next, attribute([]string{"acts", "state", "grads"}[i%3]))
		}
		t.grow(next, depth-1)
	}
}

func (t *tree) model(p scan.Path, depth int, in string) {
	kinds := []string{"ModuleList", "ModuleDict", "Block"}
	for i := range 1 + t.Intn(4) {
		name := map[string]string{"ModuleList": fmt.Sprint(i), "ModuleDict": fmt.Sprint("task", i)}[in]
		if name == "" {
			name = []string{"q", "v", "mlp", "head"}[i]
		}
		kind := kinds[t.Intn(3)]
		if depth == 0 {
			kind = "Linear"
		}
		next := append(append(scan.Path{}, p...), part("_modules", name)...)
		next[len(next)-1].Type = kind
		if depth > 0 {
			t.model(next, depth-1, kind)
			continue
		}
		for _, leaf := range []string{"weight", "bias"} {
			t.paths = append(t.paths, append(append(scan.Path{}, next...), part("_parameters", leaf)...))
		}
	}
}

func newTree(seed int64) *tree {
	t := &tree{Rand: rand.New(rand.NewSource(seed))}
	for i := range 1 + t.Intn(3) {
		t.grow(route(frame(7), local(fmt.Sprint("kept", i))), 1+t.Intn(3))
		root := attribute(fmt.Sprint("net", i))
		root.Type = "Net"
		t.model(route(mainModule(), root), t.Intn(3), "Net")
	}
	return t
}

// pattern is what a folded name stands for, in the names of single blocks.
func pattern(name string) *regexp.Regexp {
	var out strings.Builder
	out.WriteString("^")
	p := varpath.Parse(name)
	if p.Where != "" {
		out.WriteString(regexp.QuoteMeta(p.Where + " local "))
	}
	for _, e := range p.Elements {
		switch {
		case e == ".*":
			out.WriteString(`(\.[a-z]+)+`)
		case e == "…":
			out.WriteString(`(\.[a-z]+)*`)
		case strings.HasPrefix(e, ".") && strings.Contains(e, ".."):
			out.WriteString(regexp.QuoteMeta(strings.TrimRight(e[:strings.Index(e, "..")], "0123456789")) + `\d+`)
		case e[0] == '[':
			out.WriteString(`(\[\d+\]|\['(\\'|[^'])*'\]|\["[^"]*"\]|\.task\d)`) // a module of a dictionary reads like an attribute
		default:
			out.WriteString(regexp.QuoteMeta(e))
		}
	}
	return regexp.MustCompile(out.String() + "$")
}

// TestFoldRandomTrees: the name of a group is true of each of its blocks, of no block of another, and counts its elements; leaving out
// blocks changes no group but in its ranges, and only attributes tell groups apart.
func TestFoldRandomTrees(t *testing.T) {
	for seed := range int64(60) {
		tree := newTree(seed)
		var blocks []scan.Block
		for _, p := range tree.paths {
			blocks = append(blocks, held(1, scan.CategoryTensor, p))
		}
		names := ownersOf(blocks)
		groups := map[string]*regexp.Regexp{}
		for _, name := range names {
			groups[name] = pattern(name)
		}
		for name, re := range groups {
			for i := range blocks {
				if (names[i] == name) != re.MatchString(blocks[i].Name()) {
					require.Fail(t, "match", "seed %d: %q and %q, of %q", seed, name, blocks[i].Name(), names[i])
				}
			}
		}
		half := blocks[:0:0]
		var before []string
		for i := range blocks {
			if tree.Intn(2) == 0 {
				half, before = append(half, blocks[i]), append(before, names[i])
			}
		}
		after := ownersOf(half)
		renamed := map[string]string{}
		for i, name := range after {
			if renamed[before[i]] == "" {
				renamed[before[i]] = name
			}
			require.Equal(t, renamed[before[i]], name, "seed %d: %q is one group", seed, before[i])
		}
		distinct := map[string]bool{}
		for _, name := range renamed {
			distinct[name] = true
		}
		require.Len(t, distinct, len(renamed), "seed %d: groups stay apart", seed)
	}
}
