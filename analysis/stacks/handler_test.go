// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const handlerSource = `def attend(q):
    try:
        x = prepare(q)
        return whole(
            x)
    except (OutOfMemoryError,
            RuntimeError) as e:
        log(e)
        if x:
            return parts(q)
    except ValueError:
        return others(q)
    else:
        more(q)
    for n in range(3):
        again(q)

def retry(q):
	try:
		try:
			inner(q)
		except KeyError:
			pass
	except:
		outer(q)
`

// TestInHandler: a line is in the handler of what was tried only if the source says so.
func TestInHandler(t *testing.T) {
	open := func(path string) io.Reader {
		if path != "/a.py" {
			return nil
		}
		return strings.NewReader(handlerSource)
	}
	for _, c := range []struct {
		tried, line int
		want        bool
	}{
		{4, 8, true}, {4, 10, true}, {5, 10, true}, {3, 12, true}, {4, 14, false}, {4, 16, false}, {8, 12, false}, {10, 12, false},
		{10, 4, false}, {4, 4, false}, {21, 25, true}, {21, 23, true}, {23, 25, true}, {4, 25, false}, {4, 99, false}, {0, 8, false},
	} {
		require.Equal(t, c.want, InHandler(open, "/a.py", c.tried, c.line), "%+v", c)
	}
	require.False(t, InHandler(open, "/b.py", 4, 10))
	require.False(t, InHandler(nil, "/a.py", 4, 10))
}
