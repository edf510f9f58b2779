// SPDX-License-Identifier: Apache-2.0

package figures_test

import (
	"fmt"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// Sums of figures of which one is not known are not known either.
func ExampleAdd() {
	fmt.Println(figures.Add(1, 2))
	fmt.Println(figures.Add(1, event.Unknown) == event.Unknown)
	// Output:
	// 3
	// true
}
