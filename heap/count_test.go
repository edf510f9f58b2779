// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestCount: counts are sums of allocations, and each figure of them is added, taken away and compared.
func TestCount(t *testing.T) {
	require.Equal(t, Count{Objects: 1, Bytes: 512, Requested: 500, RequestedObjects: 1}, CountOf(512, 500))
	require.Equal(t, Count{Objects: 1, Bytes: 512}, CountOf(512, event.Unknown))
	require.Equal(t, Count{Objects: 1, Unsized: 1}, CountOf(event.Unknown, event.Unknown))
	some := Count{Objects: 7, Bytes: 6, Unsized: 5, Requested: 4, RequestedObjects: 3}
	require.True(t, some.Contains(some))
	for i := range reflect.TypeFor[Count]().NumField() {
		var one, more Count
		reflect.ValueOf(&one).Elem().Field(i).SetUint(1)
		more = some
		reflect.ValueOf(&more).Elem().Field(i).SetUint(reflect.ValueOf(some).Field(i).Uint() + 1)
		require.Equal(t, more, some.Plus(one))
		require.Equal(t, some, more.Minus(one))
		require.True(t, more.Contains(some))
		require.False(t, some.Contains(more))
	}
}
