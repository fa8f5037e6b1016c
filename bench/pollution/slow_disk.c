/* A file that is as slow as a disk: `slow_disk BACKING MOUNTPOINT BYTES_PER_S SEEK_US`.
 *
 * Owns a FUSE mount with one file, "disk", whose bytes are BACKING's. It speaks the kernel's protocol itself
 * (linux/fuse.h, /dev/fuse), so that it needs no library. Reads are served one at a time in the order in which
 * they came, each taking SEEK_US and its bytes at BYTES_PER_S: a disk with one arm, whose utilisation is
 * proportional to its load. (A kernel's read limit is a bucket: up to the limit no read ever waits.) Writes take no
 * time, as they do where a write-back cache lies before the disk, and pass reads that wait.
 *
 * Invariants: what was answered was read or written in BACKING; memory is bounded by the kernel's limit on
 * requests in flight (BACKGROUND); it ends when it is unmounted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FILE_NODE = 2, MAX_IO = 1 << 20, BACKGROUND = 1024, FOREVER_S = 3600 };

struct read_wait {
	struct read_wait *next;
	uint64_t unique, offset;
	uint32_t size;
};

static int fuse_fd, backing_fd;
static uint64_t bytes_per_s, seek_ns;
static struct read_wait *first, **last = &first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;

static void reply(uint64_t unique, int error, const void *body, size_t size)
{
	struct fuse_out_header head = { sizeof head + (error ? 0 : size), error, unique };
	struct iovec parts[2] = { { &head, sizeof head }, { (void *)body, size } };

	if (writev(fuse_fd, parts, error || !size ? 1 : 2) < 0 && errno != ENOENT)
		perror("reply");
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct read_wait *take_read(void)
{
	struct read_wait *one;

	pthread_mutex_lock(&lock);
	while (!first)
		pthread_cond_wait(&arrived, &lock);
	one = first;
	first = one->next;
	if (!first)
		last = &first;
	pthread_mutex_unlock(&lock);
	return one;
}

/* The disk's arm. Its time is kept apart from the clock's, so that late wake-ups do not make it slower. */
static void *serve_reads(void *unused)
{
	char *buffer = malloc(MAX_IO);
	uint64_t free_at = 0;

	(void)unused;
	while (buffer) {
		struct read_wait *one = take_read();
		uint64_t now = now_ns();
		struct timespec until;
		ssize_t got;
		int error;

		/* at most 2 ms of lateness are made good */
		if (free_at + 2000000 < now)
			free_at = now;
		free_at += seek_ns + one->size * 1000000000ull / bytes_per_s;
		got = pread(backing_fd, buffer, one->size, (off_t)one->offset); /* its own time is part of it */
		error = got < 0 ? -errno : 0;
		until.tv_sec = (time_t)(free_at / 1000000000u);
		until.tv_nsec = (long)(free_at % 1000000000u);
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
		reply(one->unique, error, buffer, error ? 0 : (size_t)got);
		free(one);
	}
	return NULL;
}

static void queue_read(uint64_t unique, const struct fuse_read_in *in)
{
	struct read_wait *one = malloc(sizeof *one);

	if (!one || in->size > MAX_IO) {
		free(one);
		reply(unique, -ENOMEM, NULL, 0);
		return;
	}
	*one = (struct read_wait){ NULL, unique, in->offset, in->size };
	pthread_mutex_lock(&lock);
	*last = one;
	last = &one->next;
	pthread_cond_signal(&arrived);
	pthread_mutex_unlock(&lock);
}

static void write_now(uint64_t unique, const struct fuse_write_in *in)
{
	struct fuse_write_out out = { 0, 0 };
	ssize_t put = pwrite(backing_fd, in + 1, in->size, (off_t)in->offset);

	out.size = put < 0 ? 0 : (uint32_t)put;
	reply(unique, put < 0 ? -errno : 0, &out, sizeof out);
}

static void begin(uint64_t unique, const struct fuse_init_in *in)
{
	struct fuse_init_out out = { 0 };

	out.major = FUSE_KERNEL_VERSION;
	out.minor = FUSE_KERNEL_MINOR_VERSION;
	out.max_readahead = in->max_readahead;
	out.flags = in->flags & (FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_BIG_WRITES | FUSE_MAX_PAGES);
	out.max_background = BACKGROUND;
	out.congestion_threshold = BACKGROUND;
	out.max_write = MAX_IO;
	out.max_pages = MAX_IO / 4096;
	out.time_gran = 1;
	reply(unique, 0, &out, sizeof out);
}

static struct fuse_attr attributes(uint64_t node)
{
	struct fuse_attr out = { 0 };
	struct stat now;

	out.ino = node;
	out.nlink = 1;
	out.blksize = 4096;
	out.mode = node == FILE_NODE ? S_IFREG | 0600 : S_IFDIR | 0700;
	if (node == FILE_NODE && !fstat(backing_fd, &now))
		out.size = (uint64_t)now.st_size, out.blocks = (uint64_t)now.st_blocks;
	return out;
}

static void look_up(uint64_t unique, const char *name)
{
	struct fuse_entry_out out = { 0 };

	if (strcmp(name, "disk")) {
		reply(unique, -ENOENT, NULL, 0);
		return;
	}
	out.nodeid = FILE_NODE;
	out.entry_valid = out.attr_valid = FOREVER_S;
	out.attr = attributes(FILE_NODE);
	reply(unique, 0, &out, sizeof out);
}

static void give_attributes(uint64_t unique, uint64_t node)
{
	struct fuse_attr_out out = { 0 };

	out.attr_valid = FOREVER_S;
	out.attr = attributes(node);
	reply(unique, 0, &out, sizeof out);
}

static void punch(uint64_t unique, const struct fuse_fallocate_in *in)
{
	int failed = fallocate(backing_fd, (int)in->mode, (off_t)in->offset, (off_t)in->length);

	reply(unique, failed ? -errno : 0, NULL, 0);
}

static void serve(const struct fuse_in_header *head)
{
	const void *body = head + 1;
	struct fuse_open_out opened = { 0 };

	switch (head->opcode) {
	case FUSE_INIT: begin(head->unique, body); break;
	case FUSE_LOOKUP: look_up(head->unique, body); break;
	case FUSE_SETATTR:
	case FUSE_GETATTR: give_attributes(head->unique, head->nodeid); break;
	case FUSE_OPENDIR:
	case FUSE_OPEN: reply(head->unique, 0, &opened, sizeof opened); break;
	case FUSE_READ: queue_read(head->unique, body); break;
	case FUSE_WRITE: write_now(head->unique, body); break;
	case FUSE_FALLOCATE: punch(head->unique, body); break;
	case FUSE_FSYNC:
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR: reply(head->unique, 0, NULL, 0); break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT: break; /* no answer */
	default: reply(head->unique, -ENOSYS, NULL, 0);
	}
}

static int open_mount(const char *backing, const char *mountpoint)
{
	char options[80];

	backing_fd = open(backing, O_RDWR | O_CLOEXEC);
	fuse_fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (backing_fd < 0 || fuse_fd < 0)
		return -1;
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
	return mount("slow_disk", mountpoint, "fuse.slow_disk", MS_NOSUID | MS_NODEV, options);
}

int main(int count, char **words)
{
	size_t size = MAX_IO + 65536;
	char *buffer = malloc(size);
	struct sched_param urgent = { 1 };
	pthread_t arm;

	if (count != 5 || !buffer) {
		fprintf(stderr, "usage: slow_disk BACKING MOUNTPOINT BYTES_PER_S SEEK_US\n");
		return 2;
	}
	sched_setscheduler(0, SCHED_FIFO, &urgent); /* a disk does not wait for a processor; without leave it does */
	bytes_per_s = strtoull(words[3], NULL, 10);
	seek_ns = strtoull(words[4], NULL, 10) * 1000;
	if (!bytes_per_s || open_mount(words[1], words[2]) || pthread_create(&arm, NULL, serve_reads, NULL)) {
		perror("slow_disk");
		return 1;
	}
	for (;;) {
		ssize_t got = read(fuse_fd, buffer, size);

		if (got >= (ssize_t)sizeof(struct fuse_in_header))
			serve((const struct fuse_in_header *)buffer);
		else if (got < 0 && errno == ENODEV)
			return 0; /* unmounted */
		else if (got < 0 && errno != EINTR && errno != ENOENT && errno != EAGAIN) {
			perror("slow_disk");
			return 1;
		}
	}
}
