/* SPDX-License-Identifier: MIT */
/* commands: the sub-commands of `quire`. */
#ifndef QUIRE_TOOLS_COMMANDS_H
#define QUIRE_TOOLS_COMMANDS_H

/* One sub-command per file. argv[0] is the name of the command; the result is the exit code. */
int cmd_codecs(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_rows(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_stat(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_serve(int argc, char **argv); /* only with QUIRE_WITH_STORE */

#endif
