// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/ranks"
)

// ranksVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const ranksVersion = 1

type ranksFile struct {
	Format    string        `json:"format"`
	Version   int           `json:"version"`
	World     *int          `json:"world_size"`
	Missing   []int         `json:"missing_ranks"`
	Processes []rankProcess `json:"processes"`
	Skew      []rankSkew    `json:"skew"`
	First     *rankFirst    `json:"grew_first"`
	Guests    []rankGuests  `json:"device_guests"`
}

// rankGuests are processes that use a device of another one.
type rankGuests struct {
	Names  []string `json:"names"`
	Owner  string   `json:"owner"`
	Device int      `json:"device"`
	Site   string   `json:"site"`
	Peak   int64    `json:"peak_device_bytes"`
}

type rankProcess struct {
	Name       string           `json:"name"`
	File       string           `json:"file"`
	Rank       *int             `json:"rank"`
	PID        int              `json:"pid"`
	Peak       int64            `json:"peak_bytes"`
	Live       int64            `json:"live_bytes"`
	Categories map[string]int64 `json:"categories"`
	Grew       *string          `json:"grew_since"`
	Leaks      *leaksBody       `json:"leaks"`
}

type rankSkew struct {
	Category string `json:"category"`
	Bytes    int64  `json:"bytes"`
	Most     string `json:"most"`
	Least    string `json:"least"`
}

type rankFirst struct {
	Name string   `json:"name"`
	Lead *float64 `json:"lead_seconds"`
}

// WriteRanks writes the processes of a job.
func WriteRanks(w io.Writer, t *ranks.Table) error {
	out := ranksFile{Format: "gputrace ranks", Version: ranksVersion, World: countOrNull(t.World), Missing: append([]int{}, t.Missing...)}
	for i := range t.Processes {
		p := &t.Processes[i]
		x := rankProcess{Name: p.Name, File: p.File, PID: p.PID, Peak: p.Peak, Live: p.Live, Categories: p.Categories,
			Leaks: leaksBodyOf(p.Leaks, "")}
		if p.Rank >= 0 {
			x.Rank = &p.Rank
		}
		if !p.Grew.IsZero() {
			x.Grew = textOrNull(p.Grew.UTC().Format(time.RFC3339Nano))
		}
		out.Processes = append(out.Processes, x)
	}
	for _, s := range t.Skews {
		out.Skew = append(out.Skew, rankSkew{s.Category, s.Bytes, t.Processes[s.Most].Name, t.Processes[s.Least].Name})
	}
	out.Guests = []rankGuests{}
	for _, g := range t.Guests {
		x := rankGuests{Owner: t.Processes[g.Owner].Name, Device: g.Device, Site: g.Site, Peak: g.Peak}
		for _, n := range g.Processes {
			x.Names = append(x.Names, t.Processes[n].Name)
		}
		out.Guests = append(out.Guests, x)
	}
	if len(t.Growing) > 0 {
		out.First = &rankFirst{Name: t.Processes[t.Growing[0]].Name}
		if lead, ok := t.Lead(); ok {
			seconds := lead.Seconds()
			out.First.Lead = &seconds
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(out); err != nil {
		return fmt.Errorf("write the ranks: %w", err)
	}
	return nil
}
