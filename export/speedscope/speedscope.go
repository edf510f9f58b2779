// SPDX-License-Identifier: Apache-2.0

// Package speedscope writes flame graphs in the format of its own of speedscope, which opens it in a browser without a network.
// The format is file-format-schema.json of the npm package speedscope 1.25.0.
package speedscope

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/view"
)

// Input is what Write needs.
type Input struct {
	Name     string // of the whole
	Exporter string // program and version that wrote it
	Profiles []Profile
}

// Profile is one of the flame graphs among which a reader chooses. The first is shown.
type Profile struct {
	Name    string
	View    *view.View
	Measure view.Measure
}

// schema is what the format calls itself; nothing is fetched from there.
const schema = "https://www.speedscope.app/file-format-schema.json"

type file struct {
	Schema   string    `json:"$schema"`
	Exporter string    `json:"exporter"`
	Name     string    `json:"name"`
	Active   int       `json:"activeProfileIndex"`
	Shared   shared    `json:"shared"`
	Profiles []sampled `json:"profiles"`
}

type shared struct {
	Frames []frame `json:"frames"`
}

type frame struct {
	Name string `json:"name"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

type sampled struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Unit    string   `json:"unit"`
	Start   int64    `json:"startValue"`
	End     int64    `json:"endValue"`
	Samples [][]int  `json:"samples"` // numbers of frames, outermost first
	Weights []uint64 `json:"weights"`
}

// Write writes a flame graph for each profile. What is in use adds up to View.Total and View.Overdrawn: the format has no
// negative numbers.
func Write(w io.Writer, in Input) error {
	out := file{Schema: schema, Exporter: in.Exporter, Name: in.Name, Profiles: []sampled{}}
	t := &table{index: map[frame]int{}, frames: []frame{}}
	for i := range in.Profiles {
		out.Profiles = append(out.Profiles, t.profile(&in.Profiles[i]))
	}
	out.Shared.Frames = t.frames
	if err := json.NewEncoder(w).Encode(&out); err != nil {
		return fmt.Errorf("write flame graphs: %w", err)
	}
	return nil
}

// table is the frames of all profiles.
type table struct {
	index  map[frame]int
	frames []frame
}

func (t *table) profile(in *Profile) sampled {
	out := sampled{Type: "sampled", Name: in.Name, Unit: "bytes", Samples: [][]int{}, Weights: []uint64{}}
	for p := range in.View.Samples(in.Measure, nil) {
		if p.Bytes <= 0 {
			continue
		}
		labels := p.Labels()
		stack := make([]int, 0, len(labels))
		for i := len(labels) - 1; i >= 0; i-- {
			stack = append(stack, t.frame(&labels[i]))
		}
		out.Samples = append(out.Samples, stack)
		out.Weights = append(out.Weights, uint64(p.Bytes))
		out.End += p.Bytes
	}
	return out
}

func (t *table) frame(l *view.Label) int {
	f := frame{Name: l.Text}
	if l.Frame != nil {
		f.File, f.Line = l.Frame.File, max(0, l.Frame.Line)
		if f.File == "" && l.Frame.Module != nil {
			f.File = l.Frame.Module.Path
		}
	}
	i, ok := t.index[f]
	if !ok {
		i = len(t.frames)
		t.index[f] = i
		t.frames = append(t.frames, f)
	}
	return i
}
