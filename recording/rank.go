// SPDX-License-Identifier: Apache-2.0

package recording

import "fmt"

// Label is the rank for people, such as "rank 3"; of nil, which is not known, it is empty.
func (r *Rank) Label() string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("rank %d", r.Rank)
}

// Process names a process of that rank for people, such as "rank 3, pid 42"; of nil its PID alone.
func (r *Rank) Process(pid int) string {
	if r == nil {
		return fmt.Sprintf("pid %d", pid)
	}
	return fmt.Sprintf("%s, pid %d", r.Label(), pid)
}
