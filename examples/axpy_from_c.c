/* y += k * x from C, over the daemon's socket, with nothing but the C library.
 *
 * Shows the protocol (docs/protocol.md) at its smallest: MessagePack written by hand, handles that the client chooses
 * ("as"), all requests sent in one piece before the first answer is read, and a result checked.
 *
 *     cc -O2 -o axpy_from_c axpy_from_c.c
 *     ./axpy_from_c [examples/axpy/axpy.spv]
 *
 * A daemon must run: $VKQUEUE_SOCKET, or $XDG_RUNTIME_DIR/vkqueue/vkqueue.sock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { N = 1000, MODULE = 1, X = 2, Y = 3 };

static void die(const char *what)
{
    fprintf(stderr, "axpy_from_c: %s\n", what);
    exit(1);
}

/* Writing MessagePack. Any of its forms will do where several can hold a value; these are the long ones. */

static uint8_t *out;
static size_t out_size, out_room;

static void put(const void *data, size_t size)
{
    if (out_size + size > out_room) {
        out_room = 2 * (out_size + size);
        out = realloc(out, out_room);
        if (!out) die("out of memory");
    }
    if (size) memcpy(out + out_size, data, size);
    out_size += size;
}

static void put_head(uint8_t kind, uint32_t value) /* a byte, then 32 bits, big-endian */
{
    uint8_t head[5] = {kind, value >> 24, value >> 16, value >> 8, value};
    put(head, sizeof head);
}

static void put_int(uint32_t value) { put_head(0xce, value); }
static void put_array(uint32_t count) { put_head(0xdd, count); }
static void put_map(uint32_t pairs) { put_head(0xdf, pairs); }
static void put_bin(const void *data, uint32_t size) { put_head(0xc6, size); put(data, size); }

static void put_str(const char *text)
{
    put_head(0xdb, strlen(text));
    put(text, strlen(text));
}

static void put_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_head(0xca, bits);
}

static void request(uint32_t msgid, const char *method, uint32_t parameters) /* the map's pairs follow */
{
    put_array(4);
    put_int(0);
    put_int(msgid);
    put_str(method);
    put_array(1);
    put_map(parameters);
}

/* Reading it: what is looked for is taken, everything else skipped. Input is buffered. */

static int sock = -1;
static uint8_t in[1 << 16];
static size_t in_at, in_end;

static void take(void *target, size_t size) /* target may be NULL */
{
    for (size_t done = 0; done < size;) {
        if (in_at == in_end) {
            ssize_t got = read(sock, in, sizeof in);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) die("the daemon closed the connection");
            in_at = 0;
            in_end = got;
        }
        size_t part = in_end - in_at < size - done ? in_end - in_at : size - done;
        if (target) memcpy((uint8_t *)target + done, in + in_at, part);
        in_at += part;
        done += part;
    }
}

static uint64_t take_big_endian(size_t size)
{
    uint8_t bytes[8];
    uint64_t value = 0;
    take(bytes, size);
    for (size_t i = 0; i < size; i++) value = value << 8 | bytes[i];
    return value;
}

typedef struct {
    enum { NIL, NUMBER, STR, BIN, ARRAY, MAP } kind;
    uint64_t value; /* a number; the bytes of a str or bin; the entries of an array; the pairs of a map */
} Head;

static Head take_head(void) /* the bytes of a str or bin come next, as do the entries of an array or a map */
{
    uint8_t b = take_big_endian(1);
    if (b < 0x80) return (Head){NUMBER, b};
    if (b < 0x90) return (Head){MAP, b & 15};
    if (b < 0xa0) return (Head){ARRAY, b & 15};
    if (b < 0xc0) return (Head){STR, b & 31};
    if (b >= 0xe0) return (Head){NUMBER, (uint64_t)(int8_t)b};
    switch (b) {
    case 0xc0: return (Head){NIL, 0};
    case 0xc2: case 0xc3: return (Head){NUMBER, b & 1};
    case 0xc4: case 0xc5: case 0xc6: return (Head){BIN, take_big_endian(1 << (b - 0xc4))};
    case 0xca: case 0xcb: return (Head){NUMBER, take_big_endian(4 << (b - 0xca))}; /* a float's bits: of no use here */
    case 0xcc: case 0xcd: case 0xce: case 0xcf: return (Head){NUMBER, take_big_endian(1 << (b - 0xcc))};
    case 0xd0: case 0xd1: case 0xd2: case 0xd3: return (Head){NUMBER, take_big_endian(1 << (b - 0xd0))};
    case 0xd9: case 0xda: case 0xdb: return (Head){STR, take_big_endian(1 << (b - 0xd9))};
    case 0xdc: case 0xdd: return (Head){ARRAY, take_big_endian(2 << (b - 0xdc))};
    case 0xde: case 0xdf: return (Head){MAP, take_big_endian(2 << (b - 0xde))};
    }
    die("the daemon sent something else than expected");
    return (Head){NIL, 0};
}

static void skip_rest(Head head) /* what belongs to a value whose head has been taken */
{
    if (head.kind == STR || head.kind == BIN) take(NULL, head.value);
    uint64_t inside = head.kind == ARRAY ? head.value : head.kind == MAP ? 2 * head.value : 0;
    while (inside--) skip_rest(take_head());
}

static void take_text(char *text, size_t room) /* a str, cut to its place */
{
    Head head = take_head();
    if (head.kind != STR) die("expected a string");
    size_t kept = head.value < room ? head.value : room - 1;
    take(text, kept);
    take(NULL, head.value - kept);
    text[kept] = 0;
}

static void fail_with(Head error) /* the error of an answer, a map */
{
    char key[64], text[512] = "", code[64] = "";
    for (uint64_t i = 0; i < error.value; i++) {
        take_text(key, sizeof key);
        if (!strcmp(key, "message")) take_text(text, sizeof text);
        else if (!strcmp(key, "code")) take_text(code, sizeof code);
        else skip_rest(take_head());
    }
    fprintf(stderr, "axpy_from_c: %s: %s\n", code, text);
    exit(1);
}

static uint32_t take_answer(float *data) /* the msgid; a bin called "data" in the result is stored */
{
    Head message = take_head();
    if (message.kind != ARRAY) die("expected an array");
    uint64_t kind = take_head().value;
    if (kind == 2) { /* a notification: only errors matter */
        char method[64];
        take_text(method, sizeof method);
        take_head(); /* an array with one error */
        if (!strcmp(method, "error")) fail_with(take_head());
        die("expected no notification");
    }
    uint32_t msgid = take_head().value;
    Head error = take_head();
    if (error.kind != NIL) fail_with(error);
    Head result = take_head();
    if (result.kind != MAP) {
        skip_rest(result);
        return msgid;
    }
    for (uint64_t i = 0; i < result.value; i++) {
        char key[64];
        take_text(key, sizeof key);
        Head value = take_head();
        if (!strcmp(key, "data") && value.kind == BIN && value.value == N * sizeof *data) take(data, value.value);
        else skip_rest(value);
    }
    return msgid;
}

static void connect_to_daemon(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("VKQUEUE_SOCKET"), *folder = getenv("XDG_RUNTIME_DIR");
    if (path && *path)
        snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    else if (folder && *folder)
        snprintf(address.sun_path, sizeof address.sun_path, "%s/vkqueue/vkqueue.sock", folder);
    else
        snprintf(address.sun_path, sizeof address.sun_path, "/run/vkqueue/vkqueue.sock");
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) < 0) {
        perror(address.sun_path);
        exit(1);
    }
}

static void put_file(const char *path)
{
    static uint8_t spirv[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    size_t size = fread(spirv, 1, sizeof spirv, file);
    fclose(file);
    put_bin(spirv, size);
}

int main(int argc, char **argv)
{
    static float x[N], y[N], result[N]; /* the protocol's payloads are little-endian, as is every machine with a GPU */
    const float k = 0.5f;
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = N - i;
    }

    request(1, "hello", 2);
    put_str("protocol"), put_int(1);
    put_str("client"), put_str("axpy_from_c");

    request(2, "module.load", 2);
    put_str("spirv"), put_file(argc > 1 ? argv[1] : "examples/axpy/axpy.spv");
    put_str("as"), put_int(MODULE);

    request(3, "buffer.create", 2);
    put_str("data"), put_bin(x, sizeof x);
    put_str("as"), put_int(X);

    request(4, "buffer.create", 2);
    put_str("data"), put_bin(y, sizeof y);
    put_str("as"), put_int(Y);

    request(5, "dispatch", 4);
    put_str("module"), put_int(MODULE);
    put_str("args"), put_array(2), put_int(X), put_int(Y);
    put_str("scalars"), put_array(2), put_int(N), put_float(k);
    put_str("grid"), put_array(1), put_int((N + 63) / 64);

    request(6, "buffer.read", 1); /* sees what the dispatch wrote, since it is sent behind it */
    put_str("buffer"), put_int(Y);

    connect_to_daemon();
    for (size_t sent = 0; sent < out_size;) {
        ssize_t part = send(sock, out + sent, out_size - sent, MSG_NOSIGNAL);
        if (part < 0 && errno != EINTR) break; /* the daemon says why, before it closes */
        if (part > 0) sent += part;
    }
    for (int answers = 0; answers < 6; answers++) /* in any order: the msgid tells which request it is for */
        take_answer(result);
    close(sock);
    free(out);

    for (int i = 0; i < N; i++) {
        if (result[i] != y[i] + k * x[i]) {
            fprintf(stderr, "axpy_from_c: y[%d] is %g, not %g\n", i, result[i], y[i] + k * x[i]);
            return 1;
        }
    }
    printf("%d values right\n", N);
    return 0;
}
