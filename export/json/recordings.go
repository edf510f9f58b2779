// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// recordingsVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const recordingsVersion = 1

// Recording is a recording of a list.
type Recording struct {
	Name      string     `json:"name"`
	Program   *string    `json:"program"`             // null: not known
	PID       *uint32    `json:"pid"`                 // null: it is a job, or not known
	Processes int        `json:"processes,omitempty"` // of a job
	Started   *time.Time `json:"started"`             // null: not known
	Seconds   *float64   `json:"seconds"`             // how long it is; null: not read yet
	Bytes     int64      `json:"bytes"`               // size of its files
	State     string     `json:"state"`               // complete, recording, cut_off, unreadable; unknown: not read yet
	Sentences []string   `json:"sentences"`           // the verdict, of a job one for each group of processes; null: not read yet
	Error     *string    `json:"error"`               // why it cannot be read; null: it can
	Page      *string    `json:"page"`                // its address on the server; null: it cannot be read
	Answer    *string    `json:"answer"`              // address of the first screen as JSON; null: it cannot be read
}

type recordingsFile struct {
	Format     string      `json:"format"`
	Version    int         `json:"version"`
	Gputrace   string      `json:"gputrace"`
	Notes      []string    `json:"notes"` // what is missing, and why
	Recordings []Recording `json:"recordings"`
}

// WriteRecordings writes a list of recordings. version is the version of gputrace.
func WriteRecordings(w io.Writer, all []Recording, notes []string, version string) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	f := recordingsFile{"gputrace recordings", recordingsVersion, version, append([]string{}, notes...), append([]Recording{}, all...)}
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("write the list of recordings: %w", err)
	}
	return nil
}
