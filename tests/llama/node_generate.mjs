// SPDX-License-Identifier: MIT
// Greedy text from a model with the prebuilt node-llama-cpp, as one line of JSON:
//   {"text": ..., "tokens": [...], "ms": decoding, "load_ms": before}
//
//   node node_generate.mjs --from DIR --model FILE --prompt TEXT [--tokens 24] [--threads 2] [--context 1024]
//
// DIR is what scripts/get-llama --node prints. All layers are offered to a device, with flash attention; backends
// come from the environment (GGML_BACKEND_PATH). `ms` is the time from the prompt to the last token.
import {createRequire} from "node:module";
import path from "node:path";
import {pathToFileURL} from "node:url";
import {parseArgs} from "node:util";

const {values: args} = parseArgs({
    options: {
        from: {type: "string"},
        model: {type: "string"},
        prompt: {type: "string"},
        tokens: {type: "string", default: "24"},
        threads: {type: "string", default: "2"},
        context: {type: "string", default: "1024"},
        verbose: {type: "boolean", default: false},
    },
});
for (const name of ["from", "model", "prompt"]) {
    if (args[name] === undefined) {
        console.error(`node_generate: --${name} is missing`);
        process.exit(2);
    }
}

const require = createRequire(path.resolve(args.from, "package.json"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")));

const start = performance.now();
const llama = await getLlama({
    gpu: false,
    build: "never",
    skipDownload: true,
    progressLogs: false,
    maxThreads: Number(args.threads),
    logLevel: args.verbose ? LlamaLogLevel.debug : LlamaLogLevel.warn,
});
const model = await llama.loadModel({modelPath: path.resolve(args.model), gpuLayers: 99});
const context = await model.createContext({
    contextSize: Number(args.context),
    threads: Number(args.threads),
    flashAttention: true,
});
const sequence = context.getSequence();
const loaded = performance.now();

const tokens = [];
const limit = Number(args.tokens);
for await (const token of sequence.evaluate(model.tokenize(args.prompt), {temperature: 0})) {
    if (model.isEogToken(token)) break;
    tokens.push(token);
    if (tokens.length >= limit) break;
}
const done = performance.now();

console.log(JSON.stringify({
    text: model.detokenize(tokens),
    tokens,
    ms: Math.round(done - loaded),
    load_ms: Math.round(loaded - start),
}));
await llama.dispose();
