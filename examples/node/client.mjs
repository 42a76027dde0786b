// y += k * x from Node.js: a client of the daemon in a page of JavaScript, by docs/protocol.md.
//
// Shows requests as promises that are answered in any order, handles that the client chooses, an error with its code,
// and many launches sent without waiting for each other.
//
//     npm install            (in this folder; @msgpack/msgpack is all)
//     node client.mjs [axpy.spv]
//
// A daemon must run: $VKQUEUE_SOCKET, or $XDG_RUNTIME_DIR/vkqueue/vkqueue.sock.

import { strict as assert } from "node:assert";
import { readFile } from "node:fs/promises";
import { connect } from "node:net";
import { fileURLToPath } from "node:url";
import { decodeMultiStream, encode } from "@msgpack/msgpack";

class VkqueueError extends Error {
  constructor({ code, message, data }) {
    super(`${code}: ${message}`);
    Object.assign(this, { code, data });
  }
}

class Client {
  #socket;
  #waiting = new Map(); // msgid → how to settle its promise
  #msgid = 0;
  #handle = 0;

  constructor(path) {
    this.#socket = connect(path);
    this.#receive();
  }

  // The answer to one request. All of them may be on their way together.
  request(method, params) {
    const msgid = ++this.#msgid;
    const answer = new Promise((resolve, reject) => this.#waiting.set(msgid, { resolve, reject }));
    this.#socket.write(encode([0, msgid, method, params ? [params] : []]));
    return answer;
  }

  // Requests that create something carry the handle that it will have, so that it can be used at once.
  create(method, params) {
    const handle = ++this.#handle;
    return [handle, this.request(method, { ...params, as: handle })];
  }

  close() {
    this.#socket.end();
  }

  async #receive() {
    let reason = new Error("the daemon closed the connection");
    try {
      for await (const [kind, ...rest] of decodeMultiStream(this.#socket)) {
        if (kind === 1) {
          const [msgid, error, result] = rest;
          const { resolve, reject } = this.#waiting.get(msgid);
          this.#waiting.delete(msgid);
          if (error) reject(new VkqueueError(error));
          else resolve(result);
        } else if (rest[0] === "error") {
          reason = new VkqueueError(rest[1][0]); // the last message before the daemon closes the connection
        }
      }
    } catch (error) {
      reason = error;
    }
    for (const { reject } of this.#waiting.values()) reject(reason);
  }
}

const { VKQUEUE_SOCKET, XDG_RUNTIME_DIR = "/run" } = process.env;
const client = new Client(VKQUEUE_SOCKET || `${XDG_RUNTIME_DIR}/vkqueue/vkqueue.sock`);
const file = process.argv[2] ?? fileURLToPath(new URL("../axpy/axpy.spv", import.meta.url));

const n = 1000;
const x = Float32Array.from({ length: n }, (_, i) => i);
const y = Float32Array.from({ length: n }, (_, i) => n - i);
const bytes = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

const hello = client.request("hello", { protocol: 1, client: "client.mjs" });
const [axpy, loaded] = client.create("module.load", { spirv: await readFile(file) });
const [onDevice, written] = client.create("buffer.create", { data: bytes(y) });

// 100 launches in order, since each writes what the one before it wrote; x travels with each of them.
const launches = Array.from({ length: 100 }, () =>
  client.request("dispatch", {
    module: axpy,
    args: [{ in: bytes(x) }, onDevice],
    scalars: { n, k: 0.5 },
    grid: [Math.ceil(n / 64)],
  }),
);
const read = client.request("buffer.read", { buffer: onDevice }); // behind all of them

const { server, devices, device } = await hello;
console.log(`${server}, ${devices[device].name}`);
console.log("kernels:", Object.keys((await loaded).kernels).join(", "));
await Promise.all([written, ...launches]);
const { data } = await read;
const result = new Float32Array(Uint8Array.from(data).buffer);
for (let i = 0; i < n; i++) assert.equal(result[i], y[i] + 100 * 0.5 * x[i]);
console.log(`${n} values right after ${launches.length} launches`);

await assert.rejects(client.request("buffer.read", { buffer: 99 }), (error) => error.code === "not_found");
client.close();
