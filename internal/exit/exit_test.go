// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCode(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, OK}, {cause, Error}, {Usage("x: %w", cause), Misuse}, {With(Nothing, cause), Nothing},
		{fmt.Errorf("step: %w", With(Invalid, cause)), Invalid}, {With(NotPermitted, Usage("x")), NotPermitted},
		{errors.Join(cause, With(TargetEnded, cause)), TargetEnded},
	} {
		require.Equal(t, c.want, Code(c.err), "%v", c.err)
		require.Equal(t, c.want != OK && c.want != Error, Has(c.err), "%v", c.err)
	}
	require.ErrorIs(t, Usage("x: %w", cause), cause)
	require.EqualError(t, Usage("x: %w", cause), "x: cause")
}
