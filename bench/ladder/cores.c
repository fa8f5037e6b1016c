/* Many clients of little cost: `cores PORT FRAMES CONNECTIONS SECONDS [PROCESSOR]`.
 *
 * Each connection sends the requests in file FRAMES, whole frames one behind another, round and round from another one on, one
 * in flight. Answers are thrown away by the kernel, unread but for their size. Prints: answers, bytes of answers, nanoseconds,
 * bytes of the smallest answer. It ends with a word to stderr where a connection breaks. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PREFIX = 4, FRAMES_MOST = 1 << 16, TAKEN = 1 << 22 };

typedef struct {
	int fd, next;
	size_t size, left; /* of the answer that is being received */
} client;

static char *frames[FRAMES_MOST];
static int frame_count;
static uint64_t answers, bytes, smallest = UINT64_MAX;

static size_t frame_bytes(const char *frame)
{
	uint32_t length;

	memcpy(&length, frame, PREFIX);
	return PREFIX + (size_t)ntohl(length);
}

static void load(const char *path)
{
	int fd = open(path, O_RDONLY);
	struct stat held;
	char *at, *end;

	if (fd < 0 || fstat(fd, &held) || (at = malloc((size_t)held.st_size)) == NULL || read(fd, at, (size_t)held.st_size) != held.st_size)
		err(1, "%s", path);
	for (end = at + held.st_size; at < end && frame_count < FRAMES_MOST; at += frame_bytes(at))
		frames[frame_count++] = at;
	close(fd);
}

static uint64_t read_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void ask(client *one)
{
	const char *frame = frames[one->next];

	one->next = (one->next + 1) % frame_count;
	one->size = one->left = 0;
	if (send(one->fd, frame, frame_bytes(frame), MSG_NOSIGNAL) != (ssize_t)frame_bytes(frame))
		err(1, "a request was not taken whole");
}

static void connect_one(client *one, const char *port, int number, int poll)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	struct epoll_event event = { .events = EPOLLIN, .data = { .ptr = one } };
	int on = 1;

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	one->fd = socket(AF_INET, SOCK_STREAM, 0);
	one->next = number * 7 % frame_count;
	if (one->fd < 0 || setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) || connect(one->fd, (void *)&at, sizeof at)
	    || epoll_ctl(poll, EPOLL_CTL_ADD, one->fd, &event))
		err(1, "port %s", port);
}

/* Takes what has come; asks again after a whole answer. */
static void take(client *one, char *scratch)
{
	ssize_t got;

	if (one->size == 0) {
		if (recv(one->fd, scratch, PREFIX, MSG_WAITALL) != PREFIX)
			errx(1, "a connection was closed");
		one->size = frame_bytes(scratch);
		one->left = one->size - PREFIX;
	}
	got = recv(one->fd, scratch, one->left < TAKEN ? one->left : TAKEN, MSG_TRUNC | MSG_DONTWAIT);
	if (got == 0)
		errx(1, "a connection was closed");
	if (got > 0 && (one->left -= (size_t)got) == 0) {
		answers++;
		bytes += one->size;
		smallest = one->size < smallest ? one->size : smallest;
		ask(one);
	}
}

int main(int argc, char **argv)
{
	static char scratch[TAKEN];
	struct epoll_event events[64];
	int poll = epoll_create1(0), count = argc > 4 ? atoi(argv[3]) : 0;
	client *clients = calloc((size_t)count + 1, sizeof *clients);
	uint64_t begun, end;
	cpu_set_t processor;

	if (count < 1 || poll < 0 || clients == NULL)
		errx(2, "usage: cores PORT FRAMES CONNECTIONS SECONDS [PROCESSOR]");
	if (argc > 5) {
		CPU_ZERO(&processor);
		CPU_SET(atoi(argv[5]), &processor);
		if (sched_setaffinity(0, sizeof processor, &processor))
			err(1, "processor %s", argv[5]);
	}
	load(argv[2]);
	for (int number = 0; number < count; number++)
		connect_one(clients + number, argv[1], number, poll);
	begun = read_ns();
	end = begun + (uint64_t)(atof(argv[4]) * 1e9);
	for (int number = 0; number < count; number++)
		ask(clients + number);
	while (read_ns() < end) {
		int ready = epoll_wait(poll, events, 64, 100);

		for (int number = 0; number < ready; number++)
			take(events[number].data.ptr, scratch);
	}
	printf("%llu %llu %llu %llu\n", (unsigned long long)answers, (unsigned long long)bytes,
	       (unsigned long long)(read_ns() - begun), (unsigned long long)smallest);
	return 0;
}
