// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/gate"
)

// checkVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const checkVersion = 1

type checkFile struct {
	Format     string        `json:"format"`
	Version    int           `json:"version"`
	Passed     bool          `json:"passed"`
	Recordings []checkReport `json:"recordings"`
}

type checkReport struct {
	Name   string      `json:"name"`
	Passed bool        `json:"passed"`
	Rules  []checkRule `json:"rules"`
}

// checkRule has null where something is not known.
type checkRule struct {
	Rule     gate.Name    `json:"rule"`
	Status   gate.Status  `json:"status"`
	Bound    *float64     `json:"bound"`
	Measured *float64     `json:"measured"`
	By       *float64     `json:"by"`
	Text     []string     `json:"text"`
	Found    []checkFound `json:"found"`
}

type checkFound struct {
	Kind      gate.FoundKind `json:"kind"`
	What      *string        `json:"what"`
	Name      *string        `json:"name"` // of the line, as people read it
	File      *string        `json:"file"`
	Line      *int           `json:"line"`
	Function  *string        `json:"function"`
	LineBytes *uint64        `json:"line_bytes"`
	Holder    *string        `json:"holder"`
	Bound     float64        `json:"bound"`
	Measured  float64        `json:"measured"`
	Time      *uint64        `json:"boottime_ns"`
}

// WriteCheck writes what became of each rule; texts says it in sentences.
func WriteCheck(w io.Writer, c *gate.Check, texts func(*gate.Result) []string) error {
	out := checkFile{Format: "gputrace check", Version: checkVersion, Passed: c.Passed(), Recordings: []checkReport{}}
	for i := range c.Reports {
		r := &c.Reports[i]
		report := checkReport{Name: r.Name, Passed: r.Passed(), Rules: []checkRule{}}
		for j := range r.Results {
			report.Rules = append(report.Rules, checkRuleOf(&r.Results[j], texts))
		}
		out.Recordings = append(out.Recordings, report)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(out); err != nil {
		return fmt.Errorf("write the check: %w", err)
	}
	return nil
}

func checkRuleOf(r *gate.Result, texts func(*gate.Result) []string) checkRule {
	out := checkRule{
		Rule: r.Rule, Status: r.Status, Bound: numberOrNull(r.Bound), Measured: numberOrNull(r.Measured), By: numberOrNull(r.By()),
		Text: texts(r), Found: []checkFound{},
	}
	for i := range r.Found {
		f := &r.Found[i]
		found := checkFound{
			Kind: f.Kind, What: textOrNull(f.What), Name: textOrNull(f.Line.Name), File: textOrNull(f.Line.File), Function: textOrNull(f.Line.Func),
			Bound: f.Bound, Measured: f.Measured, Line: countOrNull(f.Line.Line), LineBytes: countOrNull(f.LineBytes), Time: countOrNull(f.Time),
		}
		if f.Finding != nil {
			found.Holder = textOrNull(f.Finding.Holder)
		}
		out.Found = append(out.Found, found)
	}
	return out
}

// countOrNull is null for 0, of what 0 cannot be.
func countOrNull[T int | uint32 | uint64 | float64](n T) *T {
	if n == 0 {
		return nil
	}
	return &n
}
