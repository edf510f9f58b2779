// SPDX-License-Identifier: Apache-2.0

package kineto

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// JSON is the text of an argument that is a list or an object.
type JSON string

// Args calls visit with each argument of an event, in their order. A value is a string, int64, uint64, float64, bool or JSON; arguments
// that are null are left out.
func (e *Event) Args(visit func(name string, value any)) {
	rest := e.args
	if len(rest) > 0 {
		rest = rest[1:]
	}
	for {
		rest = bytes.TrimLeft(rest, " \t\r\n,:")
		if len(rest) == 0 || rest[0] != '"' {
			return // the end of the object: the decoder has checked the text
		}
		n := valueLength(rest)
		var name string
		if json.Unmarshal(rest[:n], &name) != nil {
			return
		}
		rest = bytes.TrimLeft(rest[n:], " \t\r\n:")
		n = valueLength(rest)
		if value := parseValue(rest[:n]); value != nil {
			visit(name, value)
		}
		rest = rest[n:]
	}
}

// valueLength returns the length of the value at the beginning of valid JSON.
func valueLength(b []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
			continue
		case c == '"':
			quoted = !quoted
			if !quoted && depth == 0 {
				return i + 1
			}
		case quoted:
		case c == '[' || c == '{':
			depth++
		case (c == ']' || c == '}') && depth > 0:
			if depth--; depth == 0 {
				return i + 1
			}
		case depth == 0 && (c == ',' || c == '}' || c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			return i
		}
	}
	return len(b)
}

// parseValue returns a value as Args does; nil: null, or not valid.
func parseValue(b []byte) any {
	text := string(b)
	switch {
	case text == "true" || text == "false":
		return text == "true"
	case text == "" || text == "null":
		return nil
	case text[0] == '"':
		var s string
		if json.Unmarshal(b, &s) != nil {
			return nil
		}
		return s
	case text[0] == '[' || text[0] == '{':
		return JSON(text)
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		return f
	}
	return nil
}
