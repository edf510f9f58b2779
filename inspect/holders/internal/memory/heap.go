// SPDX-License-Identifier: Apache-2.0

package memory

// copyRun is how much is copied at once, bytes.
const copyRun = 4 << 20

// CopyHeap reads the runs into the image until the time is over, and returns how many pages it has read.
func (im *Image) CopyHeap(runs []Run, over func() bool) (done uint64) {
	for _, r := range runs {
		for r.Pages > 0 {
			if over() || im.Over() {
				im.cut = true
				return done
			}
			n := min(r.Pages, copyRun>>PageShift)
			got := im.load(r.Addr, n)
			if got < n { // a page that was unmapped meanwhile
				im.miss(r.Addr + got<<PageShift)
				got++
			}
			r.Addr, r.Pages = r.Addr+got<<PageShift, r.Pages-got
			done += got
		}
	}
	im.whole = !over() && !im.Over()
	im.cut = !im.whole
	return done
}
