// SPDX-License-Identifier: Apache-2.0

package top

import "time"

// ages knows since when rows are in use: the first of the screens in a row that have them.
type ages struct {
	since map[By]map[string]time.Time
}

// add sets the age of the rows of the next screen. The rest of a table has none, as what is in it changes.
func (a *ages) add(s *Screen) {
	now := map[By]map[string]time.Time{}
	for by, rows := range s.Tables {
		now[by] = map[string]time.Time{}
		for i := range rows {
			r := &rows[i]
			if r.Rest {
				continue
			}
			since, ok := a.since[by][r.Key()]
			if !ok {
				since = s.Time
			}
			now[by][r.Key()] = since
			age := s.Time.Sub(since).Seconds()
			r.Age = &age
		}
	}
	a.since = now
}
