// SPDX-License-Identifier: Apache-2.0

package figures

// Garbage is the memory that holder scans found waiting for Python's cycle collector.
type Garbage struct {
	Time   uint64        `json:"time"`            // time of the scan that found the most, CLOCK_BOOTTIME nanoseconds
	Bytes  uint64        `json:"bytes"`           // garbage that it found
	Total  uint64        `json:"total"`           // all memory that it accounted for
	Holder string        `json:"holder"`          // holder of most of Bytes: "garbage Linear.*"
	Cycle  string        `json:"cycle,omitempty"` // as HolderFacts.Cycle
	Lines  []GarbageLine `json:"lines"`           // lines that allocated garbage, by site
}

// Mostly returns, by site, the holder of the lines whose memory was mostly garbage in the scans. g may be nil.
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
	Holder string `json:"holder"` // holder of most of Bytes
	Bytes  uint64 `json:"bytes"`  // the most garbage of the line in one scan
	Kept   uint64 `json:"kept"`   // the most that other holders kept of it in one scan
}
