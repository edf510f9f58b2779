// SPDX-License-Identifier: Apache-2.0

package present

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// pagemap is a file with an entry for each page, of which some are present.
type pagemap map[int64]uint64

func (p pagemap) ReadAt(b []byte, at int64) (int, error) {
	for i := 0; i < len(b); i += pagemapEntry {
		binary.LittleEndian.PutUint64(b[i:], p[(at+int64(i))/pagemapEntry])
	}
	return len(b), nil
}

// TestAppendRuns: the runs of pages of 4 KiB are the same bytes however large the kernel's pages are.
func TestAppendRuns(t *testing.T) {
	const start = 0xffff_8000_0000
	for _, page := range []uint64{4 << 10, 16 << 10, 64 << 10} {
		first := int64(start / page)
		entries := pagemap{first - 1: 1 << 63, first + 1: 1 << 63, first + 2: 1 << 62, first + 3: 1 << 61, first + 5: 1 << 63}
		pages := page >> PageShift
		for _, buffer := range []int{1 << 10, 2 * pagemapEntry} {
			got := appendRuns(nil, entries, Region{Start: start, End: start + 6*page}, make([]byte, buffer), page)
			require.Equal(t, []Run{{start + page, 2 * pages}, {start + 5*page, pages}}, got, "pages of %d bytes", page)
		}
	}
}
