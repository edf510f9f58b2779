// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package json

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/doctor"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/build"
	"github.com/gputrace/gputrace/internal/top"
)

// doctorFile is what doctor.WriteJSON writes.
type doctorFile struct {
	Format   string `json:"format"`
	Version  int    `json:"version"`
	Gputrace string `json:"gputrace"`
	doctor.Report
}

// schemas are the published ones, by file: the value of format, and the type that is written.
var schemas = map[string]struct {
	format string
	of     reflect.Type
}{
	"answer":        {"gputrace answer", reflect.TypeFor[answerFile]()},
	"answer-of-job": {"gputrace answer of job", reflect.TypeFor[answerOfJobFile]()},
	"alert":         {"gputrace alert", reflect.TypeFor[alertFile]()},
	"check":         {"gputrace check", reflect.TypeFor[checkFile]()},
	"diff":          {"gputrace diff", reflect.TypeFor[diffFile]()},
	"doctor":        {"gputrace doctor", reflect.TypeFor[doctorFile]()},
	"dump":          {"gputrace dump", reflect.TypeFor[dumpFile]()},
	"export":        {"gputrace export", reflect.TypeFor[exportFile]()},
	"fragments":     {"gputrace fragments", reflect.TypeFor[fragmentsFile]()},
	"leaks":         {"gputrace leaks", reflect.TypeFor[leaksFile]()},
	"leaks-of-job":  {"gputrace leaks of job", reflect.TypeFor[leaksOfJobFile]()},
	"live":          {"gputrace live", reflect.TypeFor[liveFile]()},
	"oom":           {"gputrace oom", reflect.TypeFor[oomFile]()},
	"processes":     {"gputrace processes", reflect.TypeFor[machineFile]()},
	"ranks":         {"gputrace ranks", reflect.TypeFor[ranksFile]()},
	"recordings":    {"gputrace recordings", reflect.TypeFor[recordingsFile]()},
	"summary":       {"gputrace summary", reflect.TypeFor[summaryFile]()},
	"top":           {top.Format, reflect.TypeFor[top.Line]()},
	"version":       {"", reflect.TypeFor[build.Info]()},
	"whatif":        {"gputrace whatif", reflect.TypeFor[whatIfFile]()},
	"who":           {"gputrace who", reflect.TypeFor[whoFile]()},
}

// TestSchemas: docs/schemas has the schema of everything that is written, as the types are. cmd/gputrace and e2e hold what commands print
// against them.
func TestSchemas(t *testing.T) {
	comments := fieldComments(t, ".")
	folder := filepath.Join("..", "..", "docs", "schemas")
	for name, s := range schemas {
		schema, err := jsonschema.ForType(s.of, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[figures.Bytes](): {Types: []string{"integer", "null"}, Description: "bytes; null: not known"},
			reflect.TypeFor[doctor.State]():  {Type: "string"},
			reflect.TypeFor[whoStep]():       {Type: "object", Description: "a step of the path to a block"}, // recursive
		}})
		require.NoError(t, err, name)
		open(schema)
		describe(schema, s.of, comments)
		schema.Schema, schema.ID = "https://json-schema.org/draft/2020-12/schema", "https://github.com/gputrace/gputrace/schemas/"+name+".json"
		schema.Title = s.format
		if s.format != "" {
			schema.Properties["format"] = &jsonschema.Schema{Const: jsonschema.Ptr[any](s.format)}
		}
		b, err := json.MarshalIndent(schema, "", " ")
		require.NoError(t, err)
		path := filepath.Join(folder, name+".json")
		if *update {
			require.NoError(t, os.WriteFile(path, append(b, '\n'), 0o644))
		}
		have, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(b)+"\n", string(have), "%s: go test ./export/json -run TestSchemas -update", path)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	require.NoError(t, err)
	require.Len(t, files, len(schemas), "schemas of nothing")
}

// open lets an object have more fields: later versions may add some.
func open(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Properties != nil {
		s.AdditionalProperties = nil
	}
	for _, p := range s.Properties {
		open(p)
	}
	open(s.Items)
}

// describe adds the comments of fields.
func describe(s *jsonschema.Schema, of reflect.Type, comments map[string]string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Array {
		if of.Kind() != reflect.Pointer {
			s = s.Items
		}
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || s == nil || s.Properties == nil {
		return
	}
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Anonymous {
			describe(s, f.Type, comments)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if p := s.Properties[name]; p != nil {
			if p.Description == "" {
				p.Description = comments[of.Name()+"."+f.Name]
			}
			describe(p, f.Type, comments)
		}
	}
}

// fieldComments are the comments at the end of the lines of fields, by type and field.
func fieldComments(t *testing.T, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, field := range f.Names {
						out[spec.Name.Name+"."+field.Name] = strings.TrimSpace(f.Comment.Text())
					}
				}
			}
			return true
		})
	}
	return out
}
