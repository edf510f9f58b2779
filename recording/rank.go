// SPDX-License-Identifier: Apache-2.0

package recording

import "fmt"

// Label returns the rank for people, such as "rank 3"; empty for nil.
func (r *Rank) Label() string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("rank %d", r.Rank)
}

// Process returns a name for a process of that rank, such as "rank 3, pid 42"; for nil, only its PID.
func (r *Rank) Process(pid int) string {
	if r == nil {
		return fmt.Sprintf("pid %d", pid)
	}
	return fmt.Sprintf("%s, pid %d", r.Label(), pid)
}
