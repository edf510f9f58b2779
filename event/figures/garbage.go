// SPDX-License-Identifier: Apache-2.0

package figures

// Garbage is memory that readings of holders found waiting for Python's cycle collector.
type Garbage struct {
	Time   uint64        `json:"time"`            // of the reading that found the most, CLOCK_BOOTTIME nanoseconds
	Bytes  uint64        `json:"bytes"`           // found by that reading
	Total  uint64        `json:"total"`           // all that was in use then and accounted for
	Holder string        `json:"holder"`          // of most of Bytes: "garbage Linear.*"
	Cycle  string        `json:"cycle,omitempty"` // as HolderFacts.Cycle
	Lines  []GarbageLine `json:"lines"`           // that allocated garbage, by site
}

// Mostly returns what the lines allocated of which readings found more garbage than anything else, by site. g may be nil: there are none.
func (g *Garbage) Mostly() map[string]string {
	out := map[string]string{}
	if g == nil {
		return out
	}
	for _, l := range g.Lines {
		if l.Bytes >= l.Kept {
			out[l.Site] = l.Holder
		}
	}
	return out
}

// GarbageLine is a line that allocated garbage.
type GarbageLine struct {
	Site   string `json:"site"`   // as view.Site.Name
	Holder string `json:"holder"` // of most of Bytes
	Bytes  uint64 `json:"bytes"`  // the most garbage of the line that one reading found
	Kept   uint64 `json:"kept"`   // the most that anything else held of it at one reading
}
