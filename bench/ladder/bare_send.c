/* The least that a process can pay for a Fetch from memory: `bare_send PORT ANSWERS MEMORY_BYTES`.
 *
 * Owns one listening socket and a shared mapping of MEMORY_BYTES, as an arena is, with the answers in file ANSWERS: whole
 * frames, one behind another. The n-th request of a connection is answered with the n-th of them, round and round, under
 * the request's correlation id. It understands nothing of a request but where it ends. One connection at a time.
 *
 * Invariants: nothing is touched for an answer but its own bytes, which the kernel takes from the mapping in one writev;
 * it ends by a signal, or with a word to stderr where it cannot go on.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PREFIX = 4, CORRELATION = 4, CORRELATION_AT_REQUEST = 8, HEAD = 64, REQUEST_MAX = 1 << 16 };

static char *memory, *end;

static size_t frame_bytes(const char *frame)
{
	uint32_t length;

	memcpy(&length, frame, PREFIX);
	return PREFIX + (size_t)ntohl(length);
}

/* The answers, in memory of the kind that an arena is: mapped, shared, and every page there. */
static void load(const char *path, size_t memory_bytes)
{
	int fd = open(path, O_RDONLY);
	ssize_t got;

	memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (fd < 0 || memory == MAP_FAILED)
		err(1, "%s", path);
	for (end = memory; (got = read(fd, end, memory_bytes - (size_t)(end - memory))) > 0; end += got)
		;
	if (got < 0 || end == memory || end == memory + memory_bytes)
		errx(1, "%s does not fit", path);
	close(fd);
}

static int open_port(const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, (void *)&at, sizeof at)
	    || listen(fd, 16))
		err(1, "port %s", port);
	return fd;
}

/* One request, whole: 0, or -1 where the client has gone. */
static int read_request(int fd, char *request)
{
	size_t got = 0;

	while (got < PREFIX || got < frame_bytes(request)) {
		ssize_t more = read(fd, request + got, REQUEST_MAX - got);

		if (more <= 0)
			return -1;
		got += (size_t)more;
	}
	return 0;
}

static int send_answer(int fd, const char *request, char *answer)
{
	char head[HEAD];
	struct iovec parts[2] = { { head, HEAD }, { answer + HEAD, frame_bytes(answer) - HEAD } };
	struct iovec *part = parts;

	memcpy(head, answer, HEAD);
	memcpy(head + CORRELATION, request + CORRELATION_AT_REQUEST, CORRELATION);
	while (part < parts + 2) {
		ssize_t sent = writev(fd, part, (int)(parts + 2 - part));

		if (sent < 0)
			return -1;
		for (; part < parts + 2 && (size_t)sent >= part->iov_len; part++)
			sent -= (ssize_t)part->iov_len;
		if (part < parts + 2) {
			part->iov_base = (char *)part->iov_base + sent;
			part->iov_len -= (size_t)sent;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	static char request[REQUEST_MAX];
	int listening, fd, on = 1;

	if (argc != 4)
		errx(1, "usage: bare_send PORT ANSWERS MEMORY_BYTES");
	load(argv[2], strtoul(argv[3], NULL, 10));
	listening = open_port(argv[1]);
	while ((fd = accept(listening, NULL, NULL)) >= 0) {
		char *answer = memory;

		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		while (!read_request(fd, request) && !send_answer(fd, request, answer)) {
			answer += frame_bytes(answer);
			answer = answer < end ? answer : memory;
		}
		close(fd);
	}
	err(1, "accept");
}
