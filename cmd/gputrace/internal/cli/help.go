// SPDX-License-Identifier: Apache-2.0

package cli

// RootHelp is the template of the program's help: its commands, and the options that most sessions need. It fits on one
// screen and in 60 columns; record's own help has all options of an attach.
const RootHelp = `gputrace - {{wrap .Usage 3}}

USAGE:
   sudo gputrace PID [options]   attach, record until Ctrl-C
   gputrace                      list GPU processes
   gputrace COMMAND [options]

COMMANDS:{{template "visibleCommandTemplate" .}}

OPTIONS (gputrace record --help has all of them):
   -p PID[,PID]   attach to these; --children: to theirs too
   -d TIME        stop after TIME, such as 10s
   -o FOLDER      write into the new FOLDER
   -f FORMAT      also write FORMAT: gputrace export --help
   -v, --verbose  all tables; with an error, every cause
   --json         list processes that use a GPU as JSON
   --version      print the version
`

// Synopsis is the manual page's section of that name, as roff.
const Synopsis = ".EX\n" +
	"gputrace\n" +
	"sudo gputrace [record] PID [options]\n" +
	"sudo gputrace run [options] [--] PROGRAM [arguments]\n" +
	"gputrace COMMAND [options] [RECORDING]\n" +
	"gputrace help [COMMAND]\n" +
	".EE\n"
