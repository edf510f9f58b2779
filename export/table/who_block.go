// SPDX-License-Identifier: Apache-2.0

//go:build linux

package table

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// WhoBlock prints everything that is known of one block, the one of that number in the report. Names are not cut: they go on on the next
// line.
func WhoBlock(w io.Writer, in WhoInput, block int) error {
	out := bufio.NewWriter(w)
	p := &blockPrinter{printer{Printer: layout.Printer{W: out, Width: in.Width}}}
	p.whoTitle(&in)
	p.line("")
	b := &in.Holders.Report.Blocks[block]
	where := fmt.Sprintf("%#x on %s, %s, requested %s", b.Addr, placeText(b.Host, b.Device), exactText(b.Size), exactText(b.Requested))
	if b.Allocator == allocator.BFC {
		p.field("block", "%s, allocation %d", where, b.ID)
		p.field("", "%s", b.Category)
	} else {
		p.field("block", "%s, %s", where, poolText(b.Pool.Small, b.Pool.ID))
		p.field("", "%s, stream %#x, %s", b.State, b.Stream, b.Category)
	}
	p.field("holder", "%s%s", b.Name(), confirmedText(b))
	for i := range b.Others {
		p.field("", "%s", b.Others[i].String())
	}
	if len(b.Tensors) > 0 {
		p.field("holders", "%s", foundText(b))
	}
	for i := range b.Tensors {
		p.tensor(i, &b.Tensors[i])
	}
	if b.Why != "" {
		p.field("why", "%s", b.Why)
	}
	p.steps(b.Path)
	for _, n := range in.Holders.Report.Notes {
		p.field("note", "%s", n)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the holders: %w", err)
	}
	return nil
}

// blockPrinter prints whole names: one that is cut could not be looked for in the program.
type blockPrinter struct{ printer }

func (p *blockPrinter) field(name, format string, args ...any) {
	p.printer.field(name, "%s", words.Line(fmt.Sprintf(format, args...)))
}

func confirmedText(b *holders.Block) string {
	switch {
	case len(b.Path) == 0:
		return ""
	case b.ByShape:
		return fmt.Sprintf(" (read twice, the last time %s before the end of the report; proved of others that differ only in numbers "+
			"and keys)", Duration(b.Age))
	case b.Confirmed:
		return fmt.Sprintf(" (held %s before the end of the report)", Duration(b.Age))
	}
	return " (not confirmed)"
}

// foundText says how many holders there are, and whether that is all.
func foundText(b *holders.Block) string {
	switch b.Complete.String() {
	case "yes":
		return fmt.Sprintf("all %d found, as the reference counts prove", b.Holders)
	case "no":
		return fmt.Sprintf("%d found; the reference counts show %d more", b.Holders, b.Missing)
	}
	return fmt.Sprintf("%d found; the reference counts do not show whether that is all", b.Holders)
}

func (p *blockPrinter) tensor(i int, t *holders.Tensor) {
	name := "tensor"
	if i > 0 {
		name = ""
	}
	shape := "of unknown shape"
	if t.Shape != nil {
		shape = fmt.Sprintf("%s, strides %s, offset %d", holders.ShapeText(t.Shape), holders.ShapeText(t.Strides), t.Offset)
	}
	dtype := t.DType
	if dtype == "" {
		dtype = "unknown dtype"
	}
	if t.Impl == 0 && t.Shape == nil { // an array of TensorFlow or JAX
		p.field(name, "%s id %#x", t.Class, t.Object)
		return
	}
	p.field(name, "%s %s %s", t.Kind, dtype, shape)
	object := "no Python object"
	if t.Object != 0 {
		object = fmt.Sprintf("id %#x", t.Object)
	}
	p.field("", "  %s, TensorImpl %#x, requires_grad %s", strings.TrimSpace(t.Class+" "+object), t.Impl, t.RequiresGrad)
}

// wideSteps is from how many columns on the parts of a step have columns of their own.
const wideSteps = 100

// steps prints a path step by step, with the addresses that id() gives.
func (p *blockPrinter) steps(path holders.Path) {
	for i := range path {
		name := "path"
		if i > 0 {
			name = ""
		}
		s := &path[i]
		if p.Columns() < wideSteps {
			p.field(name, "%-12s %s  %s  %#x", holders.StepName(s), stepText(s), s.Type, s.Addr)
			continue
		}
		p.field(name, "%-12s %-40s %-20s %#x", holders.StepName(s), stepText(s), s.Type, s.Addr)
	}
}

// numbered are the kinds of step that have a number.
var numbered = []string{"index", "key", "temporary", "next", "saved", "elided"}

// stepText is what a step has beside its kind.
func stepText(s *holders.Step) string {
	switch {
	case s.Frame != nil && s.Frame.Function != "":
		return fmt.Sprintf("%s:%d %s()", s.Frame.File, s.Frame.Line, s.Frame.Function)
	case s.Frame != nil && s.Frame.Thread != 0:
		return fmt.Sprintf("thread %d", s.Frame.Thread)
	case len(s.KeyPath) > 0:
		return "[" + s.KeyPath.String() + "]"
	case s.Name != "":
		return s.Name
	case holders.KeyName(s) == "object":
		return s.KeyType
	case slices.Contains(numbered, holders.StepName(s)):
		return fmt.Sprint(s.Index)
	}
	return ""
}
