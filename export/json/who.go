// SPDX-License-Identifier: Apache-2.0

//go:build linux

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event/allocator"
)

// whoVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const whoVersion = 1

// Who is what WriteWho writes.
type Who struct {
	Holders *holders.Index
	Command []string  // the command line; empty: not known
	Paused  string    // why the process does not run; empty: it does
	Boot    time.Time // when CLOCK_BOOTTIME was 0
	// By is the grouping of the rows, and Top how many of them are written; 0: all. The blocks are always written.
	By  holders.Grouping
	Top int
	// Only is the number of the one block that is written, as holders.Index counts; negative: all.
	Only int
}

// nextStep is the kind of step from a node of a graph to the one before it. Thousands can follow each other.
const nextStep = "next"

type whoFile struct {
	Format   string      `json:"format"`
	Version  int         `json:"version"`
	PID      int         `json:"pid"`
	Command  []string    `json:"command,omitempty"`
	Paused   string      `json:"paused,omitempty"`
	Python   string      `json:"python,omitempty"`
	Torch    string      `json:"torch,omitempty"`
	CuPy     string      `json:"cupy,omitempty"`
	BFC      string      `json:"bfc,omitempty"` // TensorFlow or JAX, with its version
	Time     time.Time   `json:"time"`
	BootTime uint64      `json:"boottime_ns"`
	Devices  []whoDevice `json:"devices"`
	Totals   []whoTotal  `json:"totals"`
	// Changing is what is not in Blocks because it changed while it was read.
	Changing *dumpChanging `json:"changing,omitempty"`
	By       string        `json:"by"`
	Rows     []whoRow      `json:"rows"`
	More     int           `json:"more_rows"`
	Unknown  []whoReason   `json:"unknown"`
	Counts   whoCounts     `json:"reference_counts"`
	Paths    whoPaths      `json:"paths"`
	Views    []whoView     `json:"views"`
	Blocks   []whoBlock    `json:"blocks"`
	Notes    []string      `json:"notes"`
	Cost     whoCost       `json:"cost"`
}

type whoDevice struct {
	Device    int     `json:"device"`
	Allocator string  `json:"allocator,omitempty"` // PyTorch's is left out
	Name      string  `json:"name,omitempty"`      // of the allocator, if it is BFC
	Host      bool    `json:"host,omitempty"`
	Allocated uint64  `json:"allocated"`
	Reserved  *uint64 `json:"reserved,omitempty"` // of CuPy's pool it is not known
	Active    uint64  `json:"active"`
	Uncounted bool    `json:"uncounted,omitempty"`
}

type whoTotal struct {
	Category string `json:"category"`
	Blocks   int    `json:"blocks"`
	Bytes    uint64 `json:"bytes"`
}

type whoRow struct {
	Name    string  `json:"name"`
	Where   string  `json:"where,omitempty"`
	Holder  string  `json:"holder"`
	What    string  `json:"what,omitempty"`
	Tensors string  `json:"tensors,omitempty"`
	Bytes   uint64  `json:"bytes"`
	Blocks  uint64  `json:"blocks"`
	Share   float64 `json:"share"`
}

type whoReason struct {
	Why    string `json:"why"`
	Bytes  uint64 `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

type whoCounts struct {
	All     uint64 `json:"all_found"`
	Some    uint64 `json:"some_found"`
	Missing uint64 `json:"missing"`
	Unknown uint64 `json:"unknown"`
}

// whoPaths is how many blocks are called by a path, and of how many it was proved by itself.
type whoPaths struct {
	Named  uint64 `json:"named"`
	Proved uint64 `json:"proved"`
}

type whoView struct {
	Address uint64 `json:"address"`
	Seen    uint64 `json:"seen"`
	Size    uint64 `json:"size"`
}

type whoBlock struct {
	Device    int           `json:"device"`
	Host      bool          `json:"host,omitempty"`
	Allocator string        `json:"allocator,omitempty"`
	Address   uint64        `json:"address"`
	Size      uint64        `json:"size"`
	Requested *uint64       `json:"requested,omitempty"` // PyTorch 1.13 does not keep it
	Stream    *uint64       `json:"stream,omitempty"`    // CuPy's pool is not asked
	ID        uint64        `json:"allocation_id,omitempty"`
	State     string        `json:"state"`
	Pool      *dumpPoolName `json:"pool,omitempty"` // of PyTorch's allocator
	Category  string        `json:"category"`
	Name      string        `json:"name"`
	Group     string        `json:"group"`
	Path      []whoStep     `json:"path,omitempty"`
	Others    []whoPath     `json:"others,omitempty"`
	Tensors   []whoTensor   `json:"tensors"`
	Holders   int           `json:"holders"`
	Missing   int           `json:"missing"`
	Complete  string        `json:"complete"`
	Confirmed bool          `json:"confirmed"`
	Proved    bool          `json:"proved"`
	Age       int64         `json:"age_ns"`
	Class     string        `json:"class,omitempty"`
	Why       string        `json:"why,omitempty"`
}

type whoPath struct {
	Name string    `json:"name"`
	Path []whoStep `json:"path"`
}

type whoStep struct {
	Kind    string    `json:"kind"`
	Name    string    `json:"name,omitempty"`
	Index   int64     `json:"index"`
	Indices []int64   `json:"indices,omitempty"` // of a run of "next", which is one step here
	Key     string    `json:"key_kind,omitempty"`
	KeyAddr uint64    `json:"key_addr,omitempty"`
	KeyPath []whoStep `json:"key_path,omitempty"`
	KeyType string    `json:"key_type,omitempty"`
	Frame   *whoFrame `json:"frame,omitempty"`
	Addr    uint64    `json:"addr,omitempty"`
	Type    string    `json:"type,omitempty"`
}

type whoFrame struct {
	Thread   uint64 `json:"thread,omitempty"`
	Depth    int    `json:"depth"`
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
}

type whoTensor struct {
	Impl         uint64   `json:"impl"`
	Object       uint64   `json:"id,omitempty"`
	Class        string   `json:"class,omitempty"`
	Shape        *[]int64 `json:"shape,omitempty"` // [] of a scalar
	Strides      *[]int64 `json:"strides,omitempty"`
	Offset       *int64   `json:"offset,omitempty"`
	DType        string   `json:"dtype,omitempty"`
	RequiresGrad string   `json:"requires_grad"`
	Kind         string   `json:"kind"`
}

type whoCost struct {
	BytesRead uint64 `json:"bytes_read"`
	BytesHeld uint64 `json:"bytes_held"`
	Objects   int    `json:"objects"`
	Native    int    `json:"native_objects"`
	Frozen    int64  `json:"stopped_ns"`
	Copy      int64  `json:"copy_ns"`
	Confirm   int64  `json:"confirm_ns"`
	Elapsed   int64  `json:"elapsed_ns"`
}

// WriteWho writes who holds each block as one JSON object on one line.
func WriteWho(out io.Writer, w Who) error {
	f := newWhoFile(&w)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("write the holders as JSON: %w", err)
	}
	return nil
}

func newWhoFile(w *Who) *whoFile {
	r := w.Holders.Report
	t := w.Holders.By(w.By, w.Top)
	c := w.Holders.Completeness()
	f := &whoFile{
		Format: "gputrace who", Version: whoVersion, PID: r.PID, Command: w.Command, Paused: w.Paused, Python: r.Python, Torch: r.Torch,
		CuPy: r.CuPy, BFC: r.BFC,
		Time: w.Boot.Add(time.Duration(r.Time)).UTC(), BootTime: r.Time, Devices: []whoDevice{}, Totals: []whoTotal{},
		By: holders.GroupingNames[w.By], Rows: []whoRow{}, More: t.More, Unknown: []whoReason{},
		Counts: whoCounts{c.All, c.Some, c.Missing, c.Unknown}, Paths: whoPaths{c.Named, c.Proved},
		Views: []whoView{}, Blocks: []whoBlock{}, Notes: append([]string{}, r.Notes...), Cost: newWhoCost(r),
	}
	for _, d := range r.Devices {
		f.Devices = append(f.Devices, whoDevice{
			d.Device, allocatorName(d.Allocator), d.Name, d.Host, d.Allocated, known(d.Reserved), d.Active, d.Uncounted,
		})
	}
	f.Changing = newDumpChanging(w.Holders.Changing)
	for _, s := range r.Totals {
		f.Totals = append(f.Totals, whoTotal{s.Category.String(), s.Blocks, s.Bytes})
	}
	for _, row := range t.Rows {
		f.Rows = append(f.Rows, whoRow{row.Name, row.Where, row.Holder, row.What, row.Tensors, row.Bytes, row.Blocks, row.Share})
	}
	for _, u := range w.Holders.Unknown() {
		f.Unknown = append(f.Unknown, whoReason(u))
	}
	for _, v := range w.Holders.Views() {
		f.Views = append(f.Views, whoView{r.Blocks[v.Block].Addr, v.Seen, v.Size})
	}
	for i := range r.Blocks {
		if w.Only < 0 || w.Only == i {
			f.Blocks = append(f.Blocks, newWhoBlock(&r.Blocks[i], w.Holders.Owner(i)))
		}
	}
	return f
}

// allocatorName is empty for PyTorch's allocator.
func allocatorName(a allocator.Allocator) string {
	if a == allocator.Torch {
		return ""
	}
	return a.String()
}

func newWhoCost(r *holders.Report) whoCost {
	s := &r.Stats
	return whoCost{
		BytesRead: s.BytesRead, BytesHeld: s.BytesHeld, Objects: s.Objects, Native: s.Native, Frozen: int64(s.Frozen),
		Copy: int64(s.Copy), Confirm: int64(s.Confirm), Elapsed: int64(s.Elapsed),
	}
}

func newWhoBlock(b *holders.Block, group string) whoBlock {
	out := whoBlock{
		Device: b.Device, Host: b.Host, ID: b.ID, Allocator: allocatorName(b.Allocator), Address: b.Addr, Size: b.Size,
		Requested: known(b.Requested),
		State:     b.State.String(), Category: b.Category.String(), Name: b.Name(), Group: group,
		Path: newWhoSteps(b.Path), Tensors: []whoTensor{}, Holders: b.Holders, Missing: b.Missing, Complete: b.Complete.String(),
		Confirmed: b.Confirmed, Proved: len(b.Path) > 0 && !b.ByShape, Age: int64(b.Age), Class: b.Class, Why: b.Why,
	}
	if b.Allocator == allocator.Torch {
		pool := poolName(b.Pool.Small, b.Pool.ID)
		out.Stream, out.Pool = &b.Stream, &pool
	}
	for _, p := range b.Others {
		out.Others = append(out.Others, whoPath{p.String(), newWhoSteps(p)})
	}
	for i := range b.Tensors {
		out.Tensors = append(out.Tensors, newWhoTensor(&b.Tensors[i]))
	}
	return out
}

func newWhoTensor(t *holders.Tensor) whoTensor {
	out := whoTensor{
		Impl: t.Impl, Object: t.Object, Class: t.Class, DType: t.DType, RequiresGrad: t.RequiresGrad.String(), Kind: t.Kind.String(),
	}
	if t.Shape != nil { // the layout is known
		out.Shape, out.Strides, out.Offset = &t.Shape, list(t.Strides), &t.Offset
	}
	return out
}

// list is never null: a scalar's strides may be nil.
func list(n []int64) *[]int64 {
	if n == nil {
		n = []int64{}
	}
	return &n
}

func newWhoSteps(p holders.Path) []whoStep {
	var out []whoStep
	for i := range p {
		s := &p[i]
		step := whoStep{
			Kind: holders.StepName(s), Name: s.Name, Index: s.Index, Key: holders.KeyName(s), KeyAddr: s.KeyAddr,
			KeyPath: newWhoSteps(s.KeyPath), KeyType: s.KeyType, Addr: s.Addr, Type: s.Type,
		}
		if s.Frame != nil {
			f := whoFrame(*s.Frame)
			step.Frame = &f
		}
		if n := len(out); step.Kind == nextStep && n > 0 && out[n-1].Kind == nextStep {
			step.Indices = append(out[n-1].Indices, s.Index)
			out = out[:n-1]
		} else if step.Kind == nextStep {
			step.Indices = []int64{s.Index}
		}
		out = append(out, step)
	}
	return out
}
