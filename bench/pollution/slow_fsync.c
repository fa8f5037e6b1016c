/* A log directory whose disk is sick: preloaded into a broker, it delays fsync below one directory.
 *
 * Owns fsync and fdatasync of files below $SICK_DIRECTORY, while the file $SICK_WHILE exists: each takes
 * $SICK_MS more. Must not know Kafka (which calls fsync by FileChannel.force). Invariants: the real call is
 * made after the delay and its result is returned; the wait ends within a tenth of a second of $SICK_WHILE's end, so that
 * a cured disk leaves nobody behind; nothing else is touched.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STEP_MS = 100 };

static int is_sick(int fd)
{
	const char *directory = getenv("SICK_DIRECTORY"), *marker = getenv("SICK_WHILE");
	char link[64], path[PATH_MAX];
	ssize_t size;

	if (!directory || !marker || access(marker, F_OK))
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	size = readlink(link, path, sizeof path - 1);
	if (size <= 0)
		return 0;
	path[size] = 0;
	return !strncmp(path, directory, strlen(directory));
}

static void suffer(int fd)
{
	const char *words = getenv("SICK_MS");
	long left_ms = words ? atol(words) : 0;

	for (; left_ms > 0 && is_sick(fd); left_ms -= STEP_MS) {
		struct timespec step = { 0, (left_ms < STEP_MS ? left_ms : STEP_MS) * 1000000 };

		nanosleep(&step, NULL);
	}
}

int fsync(int fd)
{
	int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");

	suffer(fd);
	return real(fd);
}

int fdatasync(int fd)
{
	int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

	suffer(fd);
	return real(fd);
}
