// SPDX-License-Identifier: Apache-2.0

package export

import (
	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
)

// Alert is an alert as a line of JSON, and in a sentence.
func Alert(a *alerts.Alert) (body []byte, text string, err error) {
	text = table.AlertText(a)
	body, err = json.Alert(a, text)
	return body, text, err
}
