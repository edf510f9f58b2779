// SPDX-License-Identifier: Apache-2.0

package memory

const (
	// aheadPages is how much memory is taken before it is needed, 16 MiB, and aheadStep how much at once: a large page of x86-64 and arm64.
	aheadPages = 1 << 12
	aheadStep  = 2 << 20
)

// ahead takes memory for the pages of an image before they are read, in a thread of its own: to touch memory for the first time, which the
// kernel fills with zeros, takes as long as to copy it.
type ahead struct {
	next   uint32      // so many pages are in use when more is asked for
	wanted chan uint32 // pages
	ended  chan struct{}
}

// PopulateAhead has memory taken as the image fills, until Close. Where the kernel cannot (before Linux 5.14), nothing changes.
func (im *Image) PopulateAhead() {
	a := &ahead{wanted: make(chan uint32, 1), ended: make(chan struct{})}
	im.ahead = a
	go a.run(im.pages)
	a.of(im.used)
}

func (a *ahead) run(memory []byte) {
	defer close(a.ended)
	done := 0
	for pages := range a.wanted {
		for end := min(int(pages)<<PageShift, len(memory)); done < end; done += aheadStep {
			if populate(memory[done:min(done+aheadStep, len(memory))]) != nil {
				done = len(memory) // it is taken when it is first written to
			}
		}
	}
}

// of says how many pages are in use. It does not wait.
func (a *ahead) of(used uint32) {
	if a == nil || used < a.next {
		return
	}
	select {
	case a.wanted <- used + aheadPages:
		a.next = used + aheadPages/2
	default: // it is behind
	}
}

// end waits until no more memory is taken.
func (a *ahead) end() {
	if a != nil {
		close(a.wanted)
		<-a.ended
	}
}
