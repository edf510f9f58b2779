// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bench/measure"
)

func TestOptions(t *testing.T) {
	for args, want := range map[string]measure.Options{
		"":                              {Rounds: 5, Window: 2 * time.Second},
		"-quick":                        {Rounds: 2, Window: 1500 * time.Millisecond},
		"-rounds 9 -window 1s":          {Rounds: 9, Window: time.Second},
		"-only mlp":                     {Rounds: 5, Window: 2 * time.Second, Only: "mlp"},
		"-only hotloop40 -window 100ms": {Rounds: 5, Window: 100 * time.Millisecond, Only: "hotloop40"},
		"-only who":                     {Rounds: 5, Window: 2 * time.Second, Only: "who"},
		"-only recording":               {Rounds: 5, Window: 2 * time.Second, Only: "recording"},
		"-only frees":                   {Rounds: 5, Window: 2 * time.Second, Only: "frees"},
		"-only cores":                   {Rounds: 5, Window: 2 * time.Second, Only: "cores"},
		"-only cores -threads 1,64":     {Rounds: 5, Window: 2 * time.Second, Only: "cores", Threads: []int{1, 64}},
		"-only feed":                    {Rounds: 5, Window: 2 * time.Second, Only: "feed"},
	} {
		got, err := parseOptions(strings.Fields(args), io.Discard)
		require.NoError(t, err, args)
		require.Equal(t, want, got, args)
	}
	for _, args := range []string{"x", "-rounds 0", "-window 99ms", "-only nothing", "-rounds x", "-threads 1,", "-threads 0", "-unknown"} {
		var out bytes.Buffer
		_, err := parseOptions(strings.Fields(args), &out)
		require.Error(t, err, args)
		require.NotEmpty(t, out.String(), args)
	}
}
