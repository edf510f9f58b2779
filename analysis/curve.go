package analysis

// NewCurves is NewBrowse with the curves, the peaks and what was refused alone: no groups and lives. It replays the trace once.
func NewCurves(t *Trace, o *BrowseOptions) (*Browse, error) {
	s := newSurvey(t, o.withDefaults())
	if err := t.Replay(&Visitor{Before: s.before, Event: s.event, Born: s.born, Gone: s.gone, Moved: s.moved, Done: s.done}); err != nil {
		return nil, err
	}
	return s.browse(), nil
}
