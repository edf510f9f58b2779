// SPDX-License-Identifier: Apache-2.0

package words

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		comm string
		want string
	}{
		"plain":             {[]string{"/usr/bin/python3", "train.py", "--lr", "1"}, "python3", "python3 train.py --lr 1"},
		"kernel thread":     {nil, "kworker", "kworker"},
		"escape characters": {[]string{"python", "\x1b[2Jx\n"}, "python", `python \x1b[2Jx\n`},
		"not UTF-8":         {[]string{"python", "\xff"}, "python", `python \xff`},
		"other scripts":     {[]string{"python", "größe.py"}, "python", "python größe.py"},
		"direction marks":   {[]string{"python", "a\u202eb"}, "python", `python a\u202eb`},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, CommandLine(c.args, c.comm)) })
	}
	long := CommandLine([]string{"python", strings.Repeat("ö", 500)}, "python")
	require.Equal(t, 60, utf8.RuneCountInString(long))
	require.True(t, utf8.ValidString(long))
}
