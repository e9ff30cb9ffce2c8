/* What the library costs a launch. Five programs take turns in each round, each going first as often as the others: two
 * without the library, and three in jobs with neither share nor cap, with a share, and with a cap that is never reached. What is
 * told is the difference to the first program in the same round; of the second one it is what cannot be told apart. Against the stand-in driver: kernels
 * take no time (a stream is idle whenever it is looked at) or longer than their launches (it is at work all the while). */
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>

#include "bench.h"
#include "check.h"

extern char **environ;

enum { ROUNDS = 400, CHILDREN = 5 };

/* What is timed. So many at once that a cap lets all of them be under way. */
static const struct call {
	const char *name;
	char kind;
	unsigned batch;
	bool time; /* kernels take some */
} calls[] = {
	{"kernel launch, stream at work", 'k', 128, true},    {"kernel launch, stream idle", 'k', 128, false},
	{"kernel launch that looks", 'l', 1, true},           {"graph launch, stream at work", 'g', 48, true},
	{"kernel launch + cuStreamWaitEvent", 'w', 48, true}, {"ioctl that is not the driver's", 'i', 128, true},
};

static const struct job {
	const char *name, *share, *cap, *target;
} jobs[CHILDREN] = {
	{"without", NULL, NULL, NULL}, {"the same", NULL, NULL, NULL}, {"neither", NULL, NULL, "0"},
	{"share", "50", NULL, "+20"},  {"cap", NULL, "90", "+50"},
};

/* The programs that take turns. */

static CUstream stream;
static CUfunction kernel;
static CUgraphExec graph;
static CUevent event;

static void must(CUresult result)
{
	if (result != CUDA_SUCCESS)
		exit(1);
}

static void launch(CUstream s) { must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); }

static void prepare(void)
{
	static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry one() { ret; }\n";
	CUmodule m;
	CUgraph g;
	start();
	must(cuModuleLoadData(&m, ptx));
	must(cuModuleGetFunction(&kernel, m, "one"));
	must(cuStreamCreate(&stream, 1));
	must(cuEventCreate(&event, 0));
	must(cuStreamBeginCapture_v2(stream, 0));
	launch(stream);
	must(cuStreamEndCapture(stream, &g));
	must(cuGraphInstantiateWithFlags(&graph, g, 0));
	must(cuEventRecord(event, NULL));
	must(cuCtxSynchronize());
}

/* One call, in ns; what was launched has ended before and after. The look that a thread takes every 4 ms is told by itself
 * ('l'), and else made by a launch that is not timed. */
static double timed(char kind, unsigned n)
{
	int none;
	if (kind == 'l')
		usleep(6000);
	else
		launch(stream);
	uint64_t from = now();
	for (unsigned i = 0; i < n; i++)
		if (kind == 'i') {
			ioctl(-1, FIONREAD, &none);
		} else if (kind == 'g') {
			must(cuGraphLaunch(graph, stream));
		} else {
			launch(stream);
			if (kind == 'w')
				must(cuStreamWaitEvent(stream, event, 0));
		}
	double took = (double)(now() - from) / n;
	must(cuCtxSynchronize());
	return took;
}

static int child(void)
{
	unsigned which;
	prepare();
	while (read(STDIN_FILENO, &which, sizeof which) == sizeof which) {
		double took = timed(calls[which].kind, calls[which].batch);
		if (write(STDOUT_FILENO, &took, sizeof took) != sizeof took)
			return 1;
	}
	return 0;
}

/* The one that gives them their turns. */

struct program {
	int ask, answer;
};

static void set(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

static void begin(struct program *p, const struct job *j, bool time, const char *folder, const char *lib)
{
	char state[4096], region[4200], *argv[] = {"bench_launches", "child", NULL};
	int in[2], out[2];
	pid_t pid;
	posix_spawn_file_actions_t files;
	snprintf(state, sizeof state, "%s/%s-%d", folder, j->name, time);
	snprintf(region, sizeof region, "%s/region", state);
	if (mkdir(state, 0700) || pipe(in) || pipe(out))
		exit(1);
	set("FAKEGPU_STATE", state);
	set("FAKEGPU_KERNEL", time ? "*:20" : NULL);
	set("RATION_REGION", region);
	set("LD_PRELOAD", j->target ? lib : NULL);
	set("CUDA_DEVICE_SM_LIMIT", j->share);
	set("RATION_COMPUTE_MAX", j->cap);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
	posix_spawn_file_actions_addclose(&files, in[1]);
	posix_spawn_file_actions_addclose(&files, out[0]);
	if (posix_spawn(&pid, "/proc/self/exe", &files, NULL, argv, environ))
		exit(1);
	posix_spawn_file_actions_destroy(&files);
	close(in[0]);
	close(out[1]);
	*p = (struct program){in[1], out[0]};
}

static double turn(const struct program *p, unsigned which)
{
	double took;
	if (write(p->ask, &which, sizeof which) != sizeof which || read(p->answer, &took, sizeof took) != sizeof took)
		exit(1);
	return took;
}

static void compare(const struct program *p, unsigned which)
{
	static double took[CHILDREN][ROUNDS], more[ROUNDS];
	for (unsigned warm = 0; warm < 20 * CHILDREN; warm++)
		turn(&p[warm % CHILDREN], which);
	for (unsigned r = 0; r < ROUNDS; r++)
		for (unsigned i = 0; i < CHILDREN; i++) {
			unsigned k = (r / 2 + (r % 2 ? CHILDREN - 1 - i : i)) % CHILDREN;
			took[k][r] = turn(&p[k], which);
		}
	printf("%s, ns\n", calls[which].name);
	for (unsigned k = 1; k < CHILDREN; k++) {
		const char *target = calls[which].kind == 'k' && calls[which].time ? jobs[k].target : NULL;
		for (unsigned r = 0; r < ROUNDS; r++)
			more[r] = took[k][r] - took[0][r];
		printf("  %-8s %+7.0f  (%+.0f ... %+.0f%s%s)", jobs[k].name, quantile(more, ROUNDS, .5), quantile(more, ROUNDS, .1),
		       quantile(more, ROUNDS, .9), target ? "; target " : "", target ? target : "");
		for (unsigned r = 0; r < ROUNDS; r++)
			more[r] = took[k][r] / took[0][r];
		printf("  %.3f x\n", quantile(more, ROUNDS, .5));
	}
	printf("  without  %7.0f\n", quantile(took[0], ROUNDS, .5));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct program p[2][CHILDREN];
	if (argc == 2 && !strcmp(argv[1], "child"))
		return child();
	if (argc != 3)
		return 64;
	for (unsigned i = 0; i < 2 * CHILDREN; i++)
		begin(&p[i / CHILDREN][i % CHILDREN], &jobs[i % CHILDREN], i / CHILDREN, argv[1], argv[2]);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		compare(p[calls[i].time], i);
	return 0;
}
