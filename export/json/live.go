// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
)

// liveVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const liveVersion = 1

// Live is what is known of one process while it is recorded.
type Live struct {
	PID      int
	Answer   *answer.Answer
	Sentence string // of the verdict, for people
	Judged   time.Time
}

type liveFile struct {
	Format    string        `json:"format"`
	Version   int           `json:"version"`
	Time      time.Time     `json:"time"`
	Processes []liveProcess `json:"processes"`
}

// liveProcess has the fields of answerBody that are known while the process runs.
type liveProcess struct {
	PID      int           `json:"pid"`
	Verdict  *string       `json:"verdict"`
	Sentence *string       `json:"sentence"`
	Judged   *time.Time    `json:"verdict_time"`
	Now      uint64        `json:"now_bytes"`
	Peak     uint64        `json:"peak_bytes"`
	Reserved *uint64       `json:"reserved_bytes"`
	Steps    leakSteps     `json:"steps"`
	Findings []leakFinding `json:"findings"`
}

// WriteLive writes the state of a running recording, on one line.
func WriteLive(w io.Writer, now time.Time, processes []Live) error {
	f := liveFile{"gputrace live", liveVersion, now, []liveProcess{}}
	for i := range processes {
		p := &processes[i]
		out := liveProcess{
			PID: p.PID, Sentence: textOrNull(p.Sentence), Now: p.Answer.Now, Peak: p.Answer.Peak,
			Reserved: knownOrNull(p.Answer.Reserved), Findings: []leakFinding{},
		}
		if growth := leaksBodyOf(p.Answer.Leaks, ""); growth != nil {
			out.Verdict, out.Steps, out.Findings = textOrNull(string(growth.Verdict)), growth.Steps, growth.Findings
			out.Judged = &p.Judged
		}
		f.Processes = append(f.Processes, out)
	}
	if err := json.NewEncoder(w).Encode(f); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}
