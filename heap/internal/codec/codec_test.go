// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type fixed struct {
	A uint32
	B int8
}

// graph is a structure with all that can be written.
type graph struct {
	n     int
	small uint8
	yes   bool
	no    bool
	x, y  uint64
	f     fixed
	text  string
	list  []uint16
	pairs map[string]uint8
	table Table[int]
	first *int
	none  *int
}

func (g *graph) code(c *Codec) {
	Number(c, &g.n)
	Number(c, &g.small)
	c.Flags(&g.yes, &g.no)
	c.Numbers(&g.x, &g.y)
	c.Fixed(&g.f)
	c.Text(&g.text)
	List(c, &g.list, func(v *uint16) { Number(c, v) })
	Map(c, g.pairs, func(k *string, v *uint8) {
		c.Text(k)
		Number(c, v)
	})
	List(c, &g.table.All, func(v **int) {
		if c.Load {
			*v = new(int)
		}
		Number(c, *v)
	})
	Pointer(c, &g.first, &g.table, true)
	Pointer(c, &g.none, &g.table, false)
}

func made() *graph {
	one, two := 1, 2
	g := &graph{
		n: 300, small: 255, yes: true, x: 1 << 63, y: 1, f: fixed{7, -1}, text: "añ", list: []uint16{1, 65535},
		pairs: map[string]uint8{"a": 1, "": 2},
		first: &two,
	}
	g.table.Add(&one)
	g.table.Add(&two)
	return g
}

// TestThereAndBack: what is written is read, and each shorter text is refused.
func TestThereAndBack(t *testing.T) {
	var w Codec
	want := made()
	want.code(&w)
	require.NoError(t, w.Err)
	got, r := &graph{pairs: map[string]uint8{}}, Codec{Data: w.Data, Load: true}
	got.code(&r)
	require.NoError(t, r.Err)
	require.Empty(t, r.Data)
	require.Same(t, got.table.All[1], got.first)
	got.table.at = want.table.at // by address, and for writing only
	require.Equal(t, want, got)
	for n := range w.Data {
		short := Codec{Data: w.Data[:n], Load: true}
		(&graph{pairs: map[string]uint8{}}).code(&short)
		require.Error(t, short.Err, "%d bytes", n)
		require.Empty(t, short.Data)
	}
}

func TestAdd(t *testing.T) {
	var table Table[int]
	one := 1
	require.False(t, table.Add(nil))
	require.True(t, table.Add(&one))
	require.False(t, table.Add(&one))
	require.Equal(t, []*int{&one}, table.All)
}

// TestFirstError: later ones say less.
func TestFirstError(t *testing.T) {
	var c Codec
	c.Fail("one %d", 1)
	c.Fail("two")
	require.EqualError(t, c.Err, "one 1")
}

func TestRefused(t *testing.T) {
	var n8 uint8
	var list []uint8
	var text string
	var f fixed
	var p *int
	one := 1
	table := Table[int]{All: []*int{&one}}
	for why, tt := range map[string]struct {
		data []byte
		read func(c *Codec)
	}{
		"a number ends early or is too large":         {[]byte{0x80, 2}, func(c *Codec) { Number(c, &n8) }},
		"a number ends early or is too large, at all": {nil, func(c *Codec) { Number(c, &n8) }},
		"3 elements in 2 bytes":                       {[]byte{3, 1, 1}, func(c *Codec) { List(c, &list, func(v *uint8) { Number(c, v) }) }},
		"a text of 3 bytes in 2":                      {[]byte{3, 1, 1}, func(c *Codec) { c.Text(&text) }},
		"*codec.fixed: ":                              {[]byte{1, 2, 3, 4}, func(c *Codec) { c.Fixed(&f) }},
		"number 2 of 1":                               {[]byte{2}, func(c *Codec) { Pointer(c, &p, &table, false) }},
		"number 0 of 1":                               {[]byte{0}, func(c *Codec) { Pointer(c, &p, &table, true) }},
	} {
		c := Codec{Data: tt.data, Load: true}
		tt.read(&c)
		require.Error(t, c.Err, why)
		require.True(t, len(why) <= len(c.Err.Error()) || why[:len(c.Err.Error())] == c.Err.Error(), "%s: %v", why, c.Err)
		require.Empty(t, c.Data)
	}
	for _, tt := range []struct {
		data []byte
		want *int
	}{{[]byte{1}, &one}, {[]byte{0}, nil}} {
		c := Codec{Data: tt.data, Load: true}
		p = nil
		Pointer(&c, &p, &table, tt.want != nil)
		require.NoError(t, c.Err)
		require.Same(t, tt.want, p)
	}
	c := Codec{Data: []byte{2, 1, 1}, Load: true}
	List(&c, &list, func(v *uint8) { Number(&c, v) })
	require.NoError(t, c.Err, "as many elements as bytes")
	c = Codec{Data: []byte{2, 'a', 'b'}, Load: true}
	c.Text(&text)
	require.NoError(t, c.Err)
	require.Equal(t, "ab", text)
}
