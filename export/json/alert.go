// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/alerts"
)

// alertVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const alertVersion = 1

type alertFile struct {
	Format   string      `json:"format"`
	Version  int         `json:"version"`
	Time     string      `json:"time"`
	Boottime uint64      `json:"boottime_ns"`
	Rule     string      `json:"rule"`
	Kind     alerts.Kind `json:"kind"`
	Process  string      `json:"process"`
	PID      int         `json:"pid"`
	Device   *string     `json:"device"`
	Step     *int        `json:"step"`
	Bound    float64     `json:"bound"`
	Measured float64     `json:"measured"`
	Since    uint64      `json:"not_shown_since_last"`
	Text     string      `json:"text"`
	Sites    []alertSite `json:"sites"`
}

type alertSite struct {
	Name     string  `json:"name"`
	File     *string `json:"file"`
	Line     *int    `json:"line"`
	Function *string `json:"function"`
	Bytes    uint64  `json:"bytes"`
	Blocks   uint64  `json:"blocks"`
	Holder   *string `json:"holder"`
}

// Alert is an alert on one line; text says it in a sentence.
func Alert(a *alerts.Alert, text string) ([]byte, error) {
	out := alertFile{
		Format: "gputrace alert", Version: alertVersion, Time: a.Time.UTC().Format(time.RFC3339Nano), Boottime: a.Boottime, Rule: a.Rule.Text,
		Kind: a.Rule.Kind, Process: a.Process, PID: a.PID, Device: textOrNull(a.Device), Step: countOrNull(a.Step), Bound: a.Rule.Bound,
		Measured: a.Measured, Since: a.Since, Text: text, Sites: []alertSite{},
	}
	for i := range a.Sites {
		s := &a.Sites[i]
		out.Sites = append(out.Sites, alertSite{
			Name: s.Line.Name, File: textOrNull(s.Line.File), Line: countOrNull(s.Line.Line), Function: textOrNull(s.Line.Func),
			Bytes: s.Bytes, Blocks: s.Blocks, Holder: textOrNull(s.Holder),
		})
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write the alert: %w", err)
	}
	return b, nil
}
