// The work of plain_site.py on Node.js: Express, Sequelize, BullMQ. `node plain_site.mjs web --bind=HOST:PORT | worker`.
// The packages are those of BENCH_NODE_PEERS.
import { createHash, createHmac, timingSafeEqual } from 'node:crypto'
import { createRequire } from 'node:module'

const require = createRequire(`${process.env.BENCH_NODE_PEERS}/`)
const express = require('express')
const { Queue, Worker } = require('bullmq')
const Redis = require('ioredis')
const { DataTypes, Op, Sequelize } = require('sequelize')

const { DATABASE_URL, REDIS_URL, PUBLIC_BASE_URL: PUBLIC, SIMULATOR_URL: PROVIDER, BENCH_TOKEN: TOKEN } = process.env
const ACCOUNT = 'AC' + '1'.repeat(32)
const NEAR_DEGREES = 0.6
const OFFER_MS = 300_000
const OVER = ['completed', 'busy', 'no-answer', 'failed', 'canceled']

// The URL may name a folder with a Unix socket, and then has no host: not a URL for Node.js.
const [, user, password, host, port, name, query] = DATABASE_URL.match(
  /^\w+:\/\/(?:([^:@/]*)(?::([^@/]*))?@)?([^:/]*)(?::(\d+))?\/([^?]*)(?:\?(.*))?$/,
)
const database = new Sequelize(name, user || 'postgres', password || '', {
  dialect: 'postgres',
  host: new URLSearchParams(query).get('host') || host,
  port: port || 5432,
  logging: false,
  pool: { max: 16 },
})
const server = REDIS_URL.startsWith('unix')
  ? { path: new URL(REDIS_URL.replace(/^unix:/, 'file:')).pathname }
  : { host: new URL(REDIS_URL).hostname, port: Number(new URL(REDIS_URL).port || 6379) }
const redis = new Redis({ ...server, maxRetriesPerRequest: null }) // as workers require
const queue = new Queue('plain-bullmq', { connection: redis })

const id = { type: DataTypes.BIGINT, primaryKey: true, autoIncrement: true }
const text = DataTypes.TEXT
const reference = DataTypes.BIGINT
const table = (name, columns) => database.define(name, { id, ...columns }, { tableName: `bench_${name}`, timestamps: false })
const Key = table('key', { digest: text })
const Technician = table('technician', {
  organization_id: reference, name: text, phone: text, skill: text, lat: DataTypes.DOUBLE, lng: DataTypes.DOUBLE,
})
const Job = table('job', {
  organization_id: reference, idempotency_key: text, form: DataTypes.JSONB, status: text, technician_id: reference,
})
const Lead = table('lead', { phone: text, status: text, outcome: text, due_at: DataTypes.DATE, finished_at: DataTypes.DATE })
const Call = table('call', {
  job_id: reference, lead_id: reference, technician_id: reference, phone: text, sid: text, status: text, ended_at: DataTypes.DATE,
})
const Event = table('event', { kind: text, subject_id: reference, data: DataTypes.JSONB })

async function startJob(jobId) {
  const call = await database.transaction(async transaction => {
    const job = await Job.findByPk(jobId, { transaction, lock: true })
    const { lat, lng, service_type: skill } = job.form
    const near = await Technician.findAll({
      where: {
        organization_id: job.organization_id, skill,
        lat: { [Op.between]: [lat - NEAR_DEGREES, lat + NEAR_DEGREES] },
        lng: { [Op.between]: [lng - NEAR_DEGREES, lng + NEAR_DEGREES] },
      },
      transaction,
    })
    const distance = one => Math.hypot(one.lat - lat, one.lng - lng)
    const technician = near.reduce((best, one) => (distance(one) < distance(best) ? one : best))
    const made = await Call.create(
      { job_id: job.id, technician_id: technician.id, phone: technician.phone, sid: '', status: 'requesting' },
      { transaction },
    )
    await job.update({ status: 'dispatching' }, { transaction })
    await Event.create({ kind: 'job.offered', subject_id: job.id, data: { technician: technician.id } }, { transaction })
    return made
  })
  await queue.add('expire_offer', { id: call.id }, { delay: OFFER_MS, removeOnComplete: true })
  await place(call)
}

async function callLead(leadId) {
  const call = await database.transaction(async transaction => {
    const lead = await Lead.findByPk(leadId, { transaction, lock: true })
    if (lead.status !== 'backlog' || lead.due_at > new Date()) return null
    await lead.update({ status: 'calling' }, { transaction })
    const made = await Call.create({ lead_id: lead.id, phone: lead.phone, sid: '', status: 'requesting' }, { transaction })
    await Event.create({ kind: 'lead.calling', subject_id: lead.id, data: { call: made.id } }, { transaction })
    return made
  })
  if (call) await place(call)
}

async function place(call) {
  const url = `${PUBLIC}/calls/${call.id}`
  const form = new URLSearchParams({
    To: call.phone, From: '+16025550100', Url: `${url}/voice`, Timeout: '25', StatusCallback: `${url}/status`,
  })
  for (const event of ['ringing', 'completed']) form.append('StatusCallbackEvent', event)
  const response = await fetch(`${PROVIDER}/2010-04-01/Accounts/${ACCOUNT}/Calls.json`, {
    method: 'POST',
    body: form,
    headers: { authorization: 'Basic ' + Buffer.from(`${ACCOUNT}:${TOKEN}`).toString('base64') },
  })
  const { sid } = await response.json()
  await database.transaction(async transaction => {
    await Call.update({ sid }, { where: { id: call.id }, transaction })
    await Event.create({ kind: 'call.submitted', subject_id: call.id, data: { sid } }, { transaction })
  })
}

function isSigned(request) {
  const fields = Object.keys(request.body).sort().map(name => name + request.body[name]).join('')
  const expected = createHmac('sha1', TOKEN).update(PUBLIC + request.originalUrl + fields).digest()
  const given = Buffer.from(request.get('X-Twilio-Signature') || '', 'base64')
  return given.length === expected.length && timingSafeEqual(given, expected)
}

async function webhook(request, response) {
  if (!isSigned(request)) return response.sendStatus(403)
  const { id: callId, kind } = request.params
  const status = request.body.CallStatus
  const isJob = await database.transaction(async transaction => {
    const call = await Call.findByPk(callId, { transaction, lock: true })
    if (kind === 'gather' && call.job_id && request.body.Digits === '1') {
      const job = await Job.findByPk(call.job_id, { transaction, lock: true })
      if (job.status === 'dispatching') {
        await job.update({ status: 'assigned', technician_id: call.technician_id }, { transaction })
        await Event.create({ kind: 'job.assigned', subject_id: job.id, data: {} }, { transaction })
      }
    }
    if (!call.ended_at && call.status !== status) {
      const endedAt = OVER.includes(status) ? new Date() : null
      await call.update({ status, ended_at: endedAt }, { transaction })
      await Event.create({ kind: `call.${status}`, subject_id: call.id, data: request.body }, { transaction })
      if (endedAt && call.lead_id) {
        const outcome = status === 'completed' ? 'answered' : 'busy'
        await Lead.update({ status: 'finished', outcome, finished_at: endedAt }, { where: { id: call.lead_id }, transaction })
        await Event.create({ kind: 'lead.finished', subject_id: call.lead_id, data: {} }, { transaction })
      }
    }
    return Boolean(call.job_id)
  })
  if (kind === 'status') return response.sendStatus(204)
  const say = isJob && kind === 'voice'
    ? `<Gather numDigits="1" action="${PUBLIC}/calls/${callId}/gather"><Say>There is a job for you. Press 1 to accept, 2 to decline.</Say></Gather>`
    : '<Say>Thank you. Goodbye.</Say>'
  return response.type('text/xml').send(`<?xml version="1.0" encoding="UTF-8"?><Response>${say}</Response>`)
}

async function submit(request, response) {
  const digest = createHash('sha256').update((request.get('Authorization') || '').replace('Bearer ', '')).digest('hex')
  const key = await Key.findOne({ where: { digest } })
  if (!key) return response.status(401).json({ detail: 'Invalid API key.' })
  const missing = ['customer_name', 'customer_phone', 'service_type', 'lat', 'lng'].filter(name => !(name in request.body))
  if (missing.length) return response.status(400).json({ missing })
  const where = { organization_id: key.id, idempotency_key: request.get('Idempotency-Key') }
  const [job, isNew] = await database.transaction(async transaction => {
    const found = await Job.findOrCreate({ where, defaults: { form: request.body, status: 'new' }, transaction })
    if (found[1]) await Event.create({ kind: 'job.received', subject_id: found[0].id, data: {} }, { transaction })
    return found
  })
  if (isNew) await queue.add('start_job', { id: job.id }, { removeOnComplete: true })
  return response.status(202).json({ id: Number(job.id) })
}

if (process.argv[2] === 'web') {
  const app = express()
  app.use(express.json(), express.urlencoded({ extended: false }))
  app.get('/readyz', async (_, response) => { await database.authenticate(); response.send('') })
  app.post('/api/v1/submissions/', submit)
  app.post('/leads', async (request, response) => {
    await queue.addBulk(request.body.map(lead => ({ name: 'call_lead', data: { id: lead }, opts: { removeOnComplete: true } })))
    response.json({})
  })
  app.post('/calls/:id/:kind', webhook)
  app.listen(Number(process.argv[3].split(':').pop()), '127.0.0.1')
} else {
  const tasks = {
    start_job: startJob,
    call_lead: callLead,
    expire_offer: call => Call.update({ status: 'timed_out' }, { where: { id: call, ended_at: null } }),
  }
  const worker = new Worker('plain-bullmq', job => tasks[job.name](job.data.id), { connection: redis, concurrency: 16 })
  worker.on('failed', (_, error) => console.error(`error: ${error}`))
}
