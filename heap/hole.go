package heap

import "github.com/gputrace/gputrace/event"

// holeApart is how long no event must have been lost for a hole to be over, nanoseconds.
const holeApart = 1e9

// Lose takes down that events of a process were lost. Losses must come in the order of their times; those that follow each
// other closely are one hole.
func (h *Heap) Lose(pid uint32, l event.Loss) {
	for i := len(h.holes) - 1; i >= 0; i-- {
		if last := &h.holes[i]; last.PID == pid {
			if l.From <= last.To+holeApart {
				last.To = max(last.To, l.To)
				last.Events += l.Events
				return
			}
			break
		}
	}
	if len(h.holes) == keptHoles {
		h.holes = append(h.holes[:0], h.holes[1:]...)
	}
	h.holes = append(h.holes, Hole{pid, l})
	h.holeCount++
}
