// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNumber compares the numbers with those of a map, with hints that tell keys apart, that do not, and that lie.
func TestNumber(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, hint := range map[string]func(key int) uint64{
		"own": func(key int) uint64 { return uint64(key) }, "same": func(int) uint64 { return 7 },
		"any": func(int) uint64 { return rng.Uint64() },
	} {
		var x Index[string]
		want := map[string]uint32{}
		for range 20_000 {
			k := rng.IntN(3000)
			key := fmt.Sprint(k)
			number, ok := want[key]
			if !ok {
				number = uint32(len(want))
				want[key] = number
			}
			_, found := x.Find(hint(k), &key)
			require.Equal(t, ok, found, name)
			got, fresh := x.Number(hint(k), &key)
			require.Equal(t, number, got, name)
			require.Equal(t, !ok, fresh, name)
		}
	}
}
